// The reader's choices: real checkboxes and radios, made again only when what they offer changes.

function options(id, kind, offers, isOn, choose) {
  const field = find(`#${id}`);
  const offered = JSON.stringify(offers);
  field.hidden = offers.length < (kind === "radio" ? 2 : 1);
  if (field.offered !== offered) {
    field.offered = offered;
    field.querySelectorAll("label").forEach((label) => label.remove());
    for (const offer of offers) {
      const input = make("input", { type: kind, name: id, value: offer.value });
      input.addEventListener("change", () => choose(offer.value, input.checked));
      field.append(make("label", {}, input, ...face(offer)));
    }
  }
  field.querySelectorAll("input").forEach((input) => (input.checked = isOn(input.value)));
}

// A method shows its line: colour, dash and end mark.
function face(offer) {
  if (offer.colour === undefined) return [make("span", {}, offer.text)];
  const line = shape("path", { d: "M1 6h24", class: "mean", "stroke-dasharray": dash(offer.colour) });
  const end = shape("path", { d: mark(offer.colour), transform: "translate(25 6)", class: "end" });
  return [shape("svg", { viewBox: "0 0 30 12", class: `key ${hue(offer.colour)}`, "aria-hidden": "true" }, line, end), make("span", {}, offer.text)];
}

function controls() {
  const { choice, data } = page;
  if (!data.metrics.some((metric) => metric.key === choice.metric)) choice.metric = data.metrics[0]?.key;
  const set = (name) => (value) => {
    choice[name] = value;
    drawAll();
  };
  const toggle = (values, value, on) => {
    if (on) values.add(value);
    else values.delete(value);
    drawAll();
  };
  options("metric", "radio", data.metrics.map(({ key, name }) => ({ value: key, text: name })), (value) => value === choice.metric, set("metric"));
  options("axis", "radio", Object.entries(AXES).map(([value, { short }]) => ({ value, text: short })), (value) => value === choice.axis, set("axis"));
  options("logs", "checkbox", [{ value: "y", text: "quality" }, { value: "x", text: "time" }], (value) => choice.logs.has(value), (value, on) => toggle(choice.logs, value, on));
  options("view", "radio", [{ value: "close", text: "close" }, { value: "whole", text: "whole" }], (value) => value === choice.view, set("view"));
  options("band-scale", "radio", [{ value: "ratio", text: "against the baseline" }, { value: "loss", text: "loss" }], (value) => value === choice.bands, set("bands"));
  const methods = data.methods.map(({ name, colour }) => ({ value: name, text: name, colour }));
  options("methods", "checkbox", methods, (value) => !choice.hidden.has(value), (value, on) => toggle(choice.hidden, value, !on));
}

function themeButton() {
  const button = find("#theme");
  const root = document.documentElement;
  const remember = (theme) => {
    root.dataset.theme = theme;
    try {
      localStorage.setItem("stepwell-theme", theme);
    } catch {
      // A page opened from a file may have no storage: the choice then lasts as long as the page.
    }
  };
  const show = () => button.setAttribute("aria-pressed", isDark());
  try {
    const known = localStorage.getItem("stepwell-theme");
    if (known === "dark" || known === "light") root.dataset.theme = known;
  } catch {
    // As above.
  }
  button.hidden = false;
  show();
  button.addEventListener("click", () => {
    remember(isDark() ? "light" : "dark");
    show();
    drawDensities();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    show();
    drawDensities();
  });
}

function copyButtons() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = find(`#${button.dataset.copy}`);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}

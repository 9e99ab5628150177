// The controls: checkboxes and radio buttons, rebuilt only when their options change.

function options(id, kind, offers, isOn, choose) {
  const field = select(`#${id}`);
  const offered = JSON.stringify(offers);
  field.hidden = offers.length < (kind === "radio" ? 2 : 1);
  if (field.offered !== offered) {
    field.offered = offered;
    field.querySelectorAll("label").forEach((label) => label.remove());
    for (const offer of offers) {
      const input = html("input", { type: kind, name: id, value: offer.value });
      input.addEventListener("change", () => choose(offer.value, input.checked));
      field.append(html("label", {}, input, ...labelOf(offer)));
    }
  }
  field.querySelectorAll("input").forEach((input) => (input.checked = isOn(input.value)));
}

// The label of a method shows its colour, dashes and end mark.
function labelOf(offer) {
  if (offer.colour === undefined) return [html("span", {}, offer.text)];
  const line = svg("path", { d: "M1 6h24", class: "mean", "stroke-dasharray": dash(offer.colour) });
  const end = svg("path", { d: mark(offer.colour), transform: "translate(25 6)", class: "end" });
  return [svg("svg", { viewBox: "0 0 30 12", class: `key ${hue(offer.colour)}`, "aria-hidden": "true" }, line, end), html("span", {}, offer.text)];
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
  options("logs", "checkbox", [{ value: "y", text: "loss" }, { value: "x", text: "x axis" }], (value) => choice.logs.has(value), (value, on) => toggle(choice.logs, value, on));
  options("view", "radio", [{ value: "close", text: "end of training" }, { value: "whole", text: "all of it" }], (value) => value === choice.view, set("view"));
  options("band-scale", "radio", [{ value: "ratio", text: "relative to the baseline" }, { value: "loss", text: "loss" }], (value) => value === choice.bands, set("bands"));
  const methods = data.methods.map(({ name, colour }) => ({ value: name, text: name, colour }));
  options("methods", "checkbox", methods, (value) => !choice.hidden.has(value), (value, on) => toggle(choice.hidden, value, !on));
}

function themeButton() {
  const button = select("#theme");
  const root = document.documentElement;
  const remember = (theme) => {
    root.dataset.theme = theme;
    try {
      localStorage.setItem("stepwell-theme", theme);
    } catch {
      // A page opened from a file may have no storage: the choice is then lost with the page.
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
    const source = select(`#${button.dataset.copy}`);
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

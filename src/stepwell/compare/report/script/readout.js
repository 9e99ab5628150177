// The readout of a chart: pointer or arrow keys move a cursor, a box beside it shows every method's value.

function addReadout(chart) {
  const { slider } = chart;
  const follow = (event) => {
    const box = slider.getBoundingClientRect();
    chart.cursor = clamp((event.clientX - box.left) / box.width, 0, 1);
    showReadout(chart);
  };
  slider.addEventListener("pointermove", follow);
  slider.addEventListener("pointerdown", follow);
  slider.addEventListener("pointerleave", () => document.activeElement !== slider && hideReadout(chart));
  slider.addEventListener("blur", () => hideReadout(chart));
  slider.addEventListener("focus", () => {
    if (!slider.matches(":focus-visible")) return;
    chart.cursor ??= 1;
    showReadout(chart);
  });
  slider.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -0.02, ArrowDown: -0.02, ArrowRight: 0.02, ArrowUp: 0.02, PageDown: -0.1, PageUp: 0.1, Home: -1, End: 1 }[event.key];
    if (event.key === "Escape") hideReadout(chart);
    if (move === undefined) return;
    event.preventDefault();
    chart.cursor = clamp((chart.cursor ?? 1) + move, 0, 1);
    showReadout(chart);
  });
}

function hideReadout(chart) {
  chart.cursor = null;
  chart.readout.hidden = true;
  chart.cross?.replaceChildren();
}

// The values at the cursor, lowest first; binned charts are read at the middle of a bin.
function valuesAtCursor(chart) {
  const { spec, inside } = chart;
  let x = chart.x.invert(inside.left + (chart.cursor ?? 1) * (inside.right - inside.left));
  x = clamp(x, chart.x.low, chart.x.high);
  if (spec.snap) x = nearest(spec.series[0].mean.xs, x);
  const rows = spec.series
    .map((one) => {
      const seeds = one.lines.map((line) => valueAt(line, x)).filter((value) => value !== null);
      const value = valueAt(one.mean, x);
      return { one, value: value ?? (seeds.length ? seeds.reduce((a, b) => a + b) / seeds.length : null), seeds };
    })
    .filter(({ value }) => value !== null)
    .sort((a, b) => (spec.highFirst ? b.value - a.value : a.value - b.value));
  return { x, rows };
}

const nearest = (values, x) => values.reduce((best, value) => (Math.abs(value - x) < Math.abs(best - x) ? value : best), values[0]);

function showReadout(chart) {
  const { spec, slider, readout, inside } = chart;
  const { x, rows } = valuesAtCursor(chart);
  slider.setAttribute("aria-label", `Read values along ${spec.x.label}`);
  slider.setAttribute("aria-valuemin", chart.x.low);
  slider.setAttribute("aria-valuemax", chart.x.high);
  slider.setAttribute("aria-valuenow", Number(x.toPrecision(5)));
  slider.setAttribute("aria-valuetext", `${exact(x)} ${spec.x.unit}: ${rows.map(({ one, value }) => `${one.name} ${exact(value)}`).join(", ")}`);
  if (chart.cursor === null) return;
  const at = chart.x(x);
  chart.cross.replaceChildren(
    svg("line", { x1: at, x2: at, y1: inside.top, y2: inside.bottom }),
    ...rows
      .filter(({ value }) => drawable(chart, x, value) && chart.y(value) >= inside.top - 8)
      .map(({ one, value }) => svg("circle", { cx: at, cy: chart.y(value), r: 3.5, class: hue(one.colour) })),
  );
  readout.replaceChildren(
    html("b", {}, `${exact(x)} ${spec.x.unit}`),
    html("table", {}, ...rows.map((row) => readoutRow(row))),
  );
  readout.hidden = false;
  // To the right of the cursor, where falling curves leave room, but never off the page.
  const room = document.documentElement.clientWidth - chart.frame.getBoundingClientRect().left - readout.offsetWidth - 8;
  const left = at + 14 > room ? at - readout.offsetWidth - 14 : at + 14;
  readout.style.left = `${clamp(left, 0, Math.max(0, room))}px`;
}

function readoutRow({ one, value, seeds }) {
  const range = seeds.length > 1 ? `${exact(Math.min(...seeds))} – ${exact(Math.max(...seeds))}` : "";
  return html(
    "tr",
    {},
    html("td", {}, dot(one.colour), one.name),
    html("td", {}, exact(value)),
    html("td", { class: "interval" }, range),
  );
}

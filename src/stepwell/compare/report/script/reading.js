// Reading a chart: a pointer or the arrow keys move a line, a box beside it says every method's value there.

function readable(chart) {
  const { hand } = chart;
  const follow = (event) => {
    const box = hand.getBoundingClientRect();
    chart.cursor = clamp((event.clientX - box.left) / box.width, 0, 1);
    tell(chart);
  };
  hand.addEventListener("pointermove", follow);
  hand.addEventListener("pointerdown", follow);
  hand.addEventListener("pointerleave", () => document.activeElement !== hand && forget(chart));
  hand.addEventListener("blur", () => forget(chart));
  hand.addEventListener("focus", () => {
    if (!hand.matches(":focus-visible")) return;
    chart.cursor ??= 1;
    tell(chart);
  });
  hand.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -0.02, ArrowDown: -0.02, ArrowRight: 0.02, ArrowUp: 0.02, PageDown: -0.1, PageUp: 0.1, Home: -1, End: 1 }[event.key];
    if (event.key === "Escape") forget(chart);
    if (move === undefined) return;
    event.preventDefault();
    chart.cursor = clamp((chart.cursor ?? 1) + move, 0, 1);
    tell(chart);
  });
}

function forget(chart) {
  chart.cursor = null;
  chart.readout.hidden = true;
  chart.cross?.replaceChildren();
}

// What stands under the cursor, lowest first; evenly binned charts are read at the middle of a bin.
function under(chart) {
  const { spec, inside } = chart;
  let x = chart.x.back(inside.left + (chart.cursor ?? 1) * (inside.right - inside.left));
  x = clamp(x, chart.x.low, chart.x.high);
  if (spec.snap) x = nearest(spec.series[0].mean.xs, x);
  const rows = spec.series
    .map((one) => {
      const seeds = one.lines.map((line) => along(line, x)).filter((value) => value !== null);
      const value = along(one.mean, x);
      return { one, value: value ?? (seeds.length ? seeds.reduce((a, b) => a + b) / seeds.length : null), seeds };
    })
    .filter(({ value }) => value !== null)
    .sort((a, b) => (spec.highFirst ? b.value - a.value : a.value - b.value));
  return { x, rows };
}

const nearest = (values, x) => values.reduce((best, value) => (Math.abs(value - x) < Math.abs(best - x) ? value : best), values[0]);

function tell(chart) {
  const { spec, hand, readout, inside } = chart;
  const { x, rows } = under(chart);
  hand.setAttribute("aria-label", `Read values along ${spec.x.label}`);
  hand.setAttribute("aria-valuemin", chart.x.low);
  hand.setAttribute("aria-valuemax", chart.x.high);
  hand.setAttribute("aria-valuenow", Number(x.toPrecision(5)));
  hand.setAttribute("aria-valuetext", `${exact(x)} ${spec.x.unit}: ${rows.map(({ one, value }) => `${one.name} ${exact(value)}`).join(", ")}`);
  if (chart.cursor === null) return;
  const at = chart.x(x);
  chart.cross.replaceChildren(
    shape("line", { x1: at, x2: at, y1: inside.top, y2: inside.bottom }),
    ...rows
      .filter(({ value }) => drawable(chart, x, value) && chart.y(value) >= inside.top - 8)
      .map(({ one, value }) => shape("circle", { cx: at, cy: chart.y(value), r: 3.5, class: hue(one.colour) })),
  );
  readout.replaceChildren(
    make("b", {}, `${exact(x)} ${spec.x.unit}`),
    make("table", {}, ...rows.map((row) => reading(row))),
  );
  readout.hidden = false;
  // Curves fall, so there is more room on the right; over the next chart too, but never off the page.
  const room = document.documentElement.clientWidth - chart.frame.getBoundingClientRect().left - readout.offsetWidth - 8;
  const left = at + 14 > room ? at - readout.offsetWidth - 14 : at + 14;
  readout.style.left = `${clamp(left, 0, Math.max(0, room))}px`;
}

function reading({ one, value, seeds }) {
  const range = seeds.length > 1 ? `${exact(Math.min(...seeds))} – ${exact(Math.max(...seeds))}` : "";
  return make(
    "tr",
    {},
    make("td", {}, dot(one.colour), one.name),
    make("td", {}, exact(value)),
    make("td", { class: "interval" }, range),
  );
}

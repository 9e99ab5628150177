// A line chart: thin seeds, thick means, one colour per method; past the palette, dashes and other end marks.

const DASHES = [null, "7 4", "2 3", "9 3 2 3", "1 5"];
const MARKS = ["M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0", "M-3 -3h6v6h-6z", "M0 -4l4 7h-8z", "M0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z", "M-4 -1.2h2.8v-2.8h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8z"];
const dash = (colour) => DASHES[Math.floor(colour / page.data.palette) % DASHES.length];
const mark = (colour) => MARKS[Math.floor(colour / page.data.palette) % MARKS.length];
const hue = (colour) => `c${colour % page.data.palette}`;
const dot = (colour) => html("span", { class: `swatch ${hue(colour)} d${Math.floor(colour / page.data.palette)}` });
const drawable = (chart, x, y) => y !== null && y !== undefined && (!chart.y.log || y > 0) && (!chart.x.log || x > 0);

let charts = 0;

function lineChart(title) {
  const chart = { spec: null, cursor: null, number: ++charts };
  chart.picture = svg("svg", { role: "img", class: "chart" });
  chart.slider = html("div", { class: "slider", role: "slider", tabindex: "0", "aria-orientation": "horizontal" });
  chart.readout = html("div", { class: "readout", "aria-hidden": "true", hidden: true });
  chart.frame = html("div", { class: "frame" }, chart.picture, chart.slider, chart.readout);
  chart.element = html("figure", { class: "card" }, html("figcaption", {}, title), chart.frame);
  chart.draw = (spec) => {
    chart.spec = spec;
    drawLines(chart);
  };
  addReadout(chart);
  new ResizeObserver(() => chart.spec && Math.abs(chart.frame.clientWidth - chart.width) > 1 && drawLines(chart)).observe(chart.frame);
  return chart;
}

function drawLines(chart) {
  const { spec, picture } = chart;
  const width = (chart.width = Math.max(260, chart.frame.clientWidth || 560));
  const names = namesAtEnds(spec, width);
  const strip = noiseStrip(spec.x.noise, 52, width - 66 - names, 4);
  const height = (chart.height = Math.round(clamp(width * 0.6, 240, 380) + strip.height));
  const inside = (chart.inside = { left: 52, right: width - 14 - names, top: 12 + strip.height, bottom: height - 42 });
  const [xs, ys] = [extent(spec.x, spec.series, "xs"), extent(spec.y, spec.series, "ys")];
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("height", height);
  picture.setAttribute("aria-label", spec.alt);
  picture.replaceChildren();
  chart.slider.hidden = !xs || !ys;
  if (!xs || !ys) {
    picture.append(svg("text", { x: width / 2, y: height / 2, class: "empty" }, "Nothing to show: all methods are hidden, or have no values yet."));
    return hideReadout(chart);
  }
  chart.x = scale(...xs, inside.left, inside.right, spec.x.log);
  chart.y = scale(...ys, inside.bottom, inside.top, spec.y.log);
  picture.append(...strip.elements, axes(chart), lines(chart), ...levelName(chart), ...(names ? endNames(chart) : []), (chart.cross = svg("g", { class: "cross" })));
  Object.assign(chart.slider.style, {
    left: `${inside.left}px`,
    top: `${inside.top}px`,
    width: `${inside.right - inside.left}px`,
    height: `${inside.bottom - inside.top}px`,
  });
  showReadout(chart);
}

// The range of an axis over all visible lines, with some padding; null if there are none.
function extent(axis, series, name) {
  let low = Infinity;
  let high = -Infinity;
  for (const line of series.flatMap((one) => [...one.lines, one.mean])) {
    const from = name === "ys" && axis.from ? line.xs[line.xs.length - 1] * axis.from : -Infinity;
    line[name].forEach((value, index) => {
      if (value === null || value === undefined || (axis.log && value <= 0) || line.xs[index] < from) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    });
  }
  if (low > high) return null;
  for (const value of axis.include ?? []) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low === high) [low, high] = axis.log ? [low / 1.5, high * 1.5] : [low - (Math.abs(low) * 0.5 || 1), high + (Math.abs(high) * 0.5 || 1)];
  if (!axis.padding) return [low, high];
  const padding = axis.log ? (high / low) ** 0.06 : (high - low) * 0.06;
  return axis.log ? [low / padding, high * padding] : [axis.zero ? 0 : low - padding, high + padding];
}

function axes(chart) {
  const { inside, spec, x, y } = chart;
  const group = svg("g", { class: "axes" });
  for (const value of ticks(y, 5)) {
    const at = Math.round(y(value)) + 0.5;
    group.append(
      svg("line", { x1: inside.left, x2: inside.right, y1: at, y2: at, class: value === spec.y.rule ? "rule" : "grid" }),
      svg("text", { x: inside.left - 8, y: at, class: "tick y" }, number(value)),
    );
  }
  for (const value of ticks(x, chart.width < 420 ? 4 : 6)) {
    const at = Math.round(x(value)) + 0.5;
    group.append(
      svg("line", { x1: at, x2: at, y1: inside.bottom, y2: inside.bottom + 4, class: "notch" }),
      svg("text", { x: at, y: inside.bottom + 17, class: "tick x" }, number(value)),
    );
  }
  if (spec.level) {
    const at = Math.round(y(spec.level.value)) + 0.5;
    group.append(svg("line", { x1: inside.left, x2: inside.right, y1: at, y2: at, class: "level" }));
  }
  group.append(
    svg("line", { x1: inside.left, x2: inside.right, y1: inside.bottom + 0.5, y2: inside.bottom + 0.5, class: "base" }),
    svg("text", { x: (inside.left + inside.right) / 2, y: chart.height - 5, class: "axis" }, spec.x.label),
  );
  return group;
}

// Drawn above the lines, which would cross it out.
function levelName({ inside, spec, y }) {
  if (!spec.level) return [];
  return [svg("text", { x: inside.left + 6, y: y(spec.level.value) - 5, class: "level-name" }, spec.level.name)];
}

function lines(chart) {
  const { inside, spec } = chart;
  const clip = `inside-${chart.number}`;
  const box = { x: inside.left, y: inside.top - 8, width: inside.right - inside.left + 8, height: inside.bottom - inside.top + 8 };
  const group = svg("g", { "clip-path": `url(#${clip})` });
  for (const one of spec.series) {
    const method = svg("g", { class: `method ${hue(one.colour)}`, "data-colour": one.colour });
    if (one.lines.length > 1) one.lines.forEach((line) => method.append(svg("path", { d: linePath(chart, line), class: "seed" })));
    method.append(svg("path", { d: linePath(chart, one.mean), class: "mean", "stroke-dasharray": dash(one.colour) }));
    const end = one.mean.xs.length - 1;
    if (!spec.step && end >= 0 && drawable(chart, one.mean.xs[end], one.mean.ys[end])) {
      const at = `translate(${chart.x(one.mean.xs[end])} ${chart.y(one.mean.ys[end])})`;
      method.append(svg("path", { d: mark(one.colour), transform: at, class: "end" }));
    }
    group.append(method);
  }
  return svg("g", {}, svg("clipPath", { id: clip }, svg("rect", box)), group);
}

// The room for names at the ends of lines: none on a phone, where the list of methods has to do.
function namesAtEnds(spec, width) {
  if (width < 480 || spec.series.length < 2) return 0;
  return 12 + 7.4 * Math.min(LONGEST_NAME, Math.max(...spec.series.map((one) => one.name.length)));
}

const LONGEST_NAME = 18;
const shortName = (name) => (name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name);

// Names beside the ends of their lines, moved apart where they would overlap.
function endNames(chart) {
  const { inside, spec } = chart;
  const ends = spec.series
    .map((one) => ({ one, x: one.mean.xs[one.mean.xs.length - 1], y: one.mean.ys[one.mean.ys.length - 1] }))
    .filter(({ x, y }) => x !== undefined && drawable(chart, x, y))
    .map((end) => ({ ...end, at: clamp(chart.y(end.y), inside.top, inside.bottom) }))
    .sort((a, b) => a.at - b.at);
  ends.forEach((end, index) => (end.at = index ? Math.max(end.at, ends[index - 1].at + 13) : end.at));
  for (let index = ends.length - 1, limit = inside.bottom; index >= 0; index--, limit -= 13) ends[index].at = Math.min(ends[index].at, limit);
  return ends.map(({ one, at }) => svg("text", { x: inside.right + 9, y: at, class: `end-name ${hue(one.colour)}` }, shortName(one.name)));
}

function linePath(chart, { xs, ys }) {
  let path = "";
  let pen = "M";
  xs.forEach((value, index) => {
    if (!drawable(chart, value, ys[index])) {
      pen = "M";
      return;
    }
    path += `${pen}${chart.x(value).toFixed(1)} ${chart.y(ys[index]).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

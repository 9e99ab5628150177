// Densities over training as maps: blue is drawn less often than uniform, orange more often.

const LIGHT = ["#0b4a7a", "#3b8bc2", "#a9cfe6", "#f4f1eb", "#f6c08f", "#e07b28", "#9a3b00"];
const DARK = ["#9ad4ff", "#3f97d0", "#1f5378", "#262a31", "#7d441b", "#dd7a2a", "#ffc993"];
const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);

// The colour of an octave, where +-limit are the ends.
function tint(octave, limit, stops) {
  const at = ((clamp(octave / limit, -1, 1) + 1) / 2) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const channel = (colour, index) => parseInt(colour.slice(1 + 2 * index, 3 + 2 * index), 16);
  return [0, 1, 2].map((index) => Math.round(channel(stops[low], index) + (at - low) * (channel(stops[low + 1], index) - channel(stops[low], index))));
}

function unpack(heat) {
  if (heat.octaves) return heat;
  const bytes = Uint8Array.from(atob(heat.cells), (letter) => letter.charCodeAt(0));
  heat.octaves = Float32Array.from(bytes, (byte) => (byte / 255) * 2 * page.data.octaves - page.data.octaves);
  return heat;
}

// The colour scale that all maps share: whole octaves that hold 98 % of all cells.
function heatLimit(heats) {
  const sizes = heats.flatMap((heat) => Array.from(unpack(heat).octaves, Math.abs)).sort((a, b) => a - b);
  return clamp(Math.ceil((sizes[Math.floor(sizes.length * 0.98)] ?? 1) - 0.1), 1, 4);
}

function heatMap() {
  const map = {};
  map.picture = svg("svg", { role: "img", class: "map" });
  map.caption = html("p", { class: "caption" });
  map.element = html("figure", { class: "card" }, html("figcaption", {}), map.picture, map.caption);
  map.draw = (spec) => {
    map.spec = spec;
    drawMap(map);
  };
  map.picture.addEventListener("pointermove", (event) => describeCell(map, event));
  map.picture.addEventListener("pointerleave", () => (map.caption.textContent = map.spec.caption));
  new ResizeObserver(() => map.spec && Math.abs(map.picture.clientWidth - map.width) > 1 && drawMap(map)).observe(map.element);
  return map;
}

function drawMap(map) {
  const { spec, picture } = map;
  const width = (map.width = Math.max(120, picture.clientWidth || 300));
  const height = 176;
  const box = (map.box = { left: 30, top: 6, width: width - 38, height: height - 44 });
  const last = spec.heat.images[spec.heat.images.length - 1] || 1;
  map.x = scale(0, last, box.left, box.left + box.width, false);
  select("figcaption", map.element).replaceChildren(dot(spec.colour), html("b", {}, spec.name), html("span", { class: "where" }, spec.where));
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("height", height);
  picture.setAttribute("aria-label", spec.alt);
  const words = [0, 0.5, 1].map((u) => svg("text", { x: box.left - 6, y: box.top + (1 - u) * box.height, class: "tick y" }, number(u)));
  const under = ticks(map.x, width < 220 ? 2 : 4).map((value) => svg("text", { x: map.x(value), y: box.top + box.height + 16, class: "tick x" }, number(value)));
  picture.replaceChildren(
    svg("image", { x: box.left, y: box.top, width: box.width, height: box.height, preserveAspectRatio: "none", href: pixels(spec) }),
    ...words,
    ...under,
    svg("text", { x: box.left + box.width / 2, y: height - 4, class: "axis" }, "images seen"),
  );
  map.caption.textContent = spec.caption;
}

// Evaluations may be unevenly spaced: every column shows the nearest one.
function pixels({ heat, limit }) {
  const { images, bins, octaves } = unpack(heat);
  const canvas = html("canvas", { width: 240, height: bins });
  const pen = canvas.getContext("2d");
  const drawn = pen.createImageData(240, bins);
  const stops = isDark() ? DARK : LIGHT;
  const last = images[images.length - 1] || 1;
  for (let column = 0, row = 0; column < 240; column++) {
    const at = ((column + 0.5) / 240) * last;
    while (row + 1 < images.length && Math.abs(images[row + 1] - at) <= Math.abs(images[row] - at)) row++;
    for (let bin = 0; bin < bins; bin++) {
      drawn.data.set([...tint(octaves[row * bins + bin], limit, stops), 255], ((bins - 1 - bin) * 240 + column) * 4);
    }
  }
  pen.putImageData(drawn, 0, 0);
  return canvas.toDataURL();
}

function describeCell(map, event) {
  const { heat } = map.spec;
  const place = map.picture.getBoundingClientRect();
  const [x, y] = [event.clientX - place.left, event.clientY - place.top];
  const u = 1 - (y - map.box.top) / map.box.height;
  if (u < 0 || u >= 1 || x < map.box.left || x > map.box.left + map.box.width) return;
  const images = nearest(heat.images, map.x.invert(x));
  const octave = unpack(heat).octaves[heat.images.indexOf(images) * heat.bins + Math.floor(u * heat.bins)];
  map.caption.textContent = `At ${number(images)} images, unit time ${u.toFixed(2)}: ${timesUniform(octave)}`;
}

// Densities are clipped to what a byte can hold.
function timesUniform(octave) {
  const end = page.data.octaves - 0.01;
  const bound = octave <= -end ? "at most " : octave >= end ? "at least " : "";
  return `${bound}${Number((2 ** octave).toPrecision(2))} × uniform`;
}

function heatScale(place, limit) {
  const stops = isDark() ? DARK : LIGHT;
  const cells = Array.from({ length: 49 }, (_, index) => {
    const colour = tint((index / 24 - 1) * limit, limit, stops);
    return svg("rect", { x: index * 7, y: 0, width: 7.4, height: 10, fill: `rgb(${colour})` });
  });
  const words = Array.from({ length: 2 * limit + 1 }, (_, index) => {
    const octave = index - limit;
    const text = octave === 0 ? "uniform" : octave > 0 ? `${2 ** octave}×` : `1/${2 ** -octave}×`;
    return svg("text", { x: 3.5 + (index / (2 * limit)) * 336, y: 24, class: "tick x" }, text);
  });
  const label = `Colour scale: blue is drawn less often than uniform, down to 1/${2 ** limit}; orange more often, up to ${2 ** limit} times.`;
  place.replaceChildren(svg("svg", { viewBox: "-14 0 371 28", role: "img", "aria-label": label }, ...cells, ...words));
}

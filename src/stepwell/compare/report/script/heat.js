// Densities over training as maps: unit time from data (left) to noise (right), training from top to bottom.

const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);

const stopsNow = () => (isDark() ? page.data.density.dark : page.data.density.light);

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
  const left = 50;
  const strip = noiseStrip(spec.noise, left, width - left - 8, 0);
  const box = (map.box = { left, top: strip.height + 4, width: width - left - 8, height: 130 });
  const height = box.top + box.height + 36;
  const last = spec.heat.images[spec.heat.images.length - 1] || 1;
  map.y = scale(0, last, box.top, box.top + box.height, false);
  select("figcaption", map.element).replaceChildren(dot(spec.colour), html("b", {}, spec.name), html("span", { class: "where" }, spec.where));
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("height", height);
  picture.setAttribute("aria-label", spec.alt);
  const words = ticks(map.y, 3).map((value) => svg("text", { x: box.left - 6, y: clamp(map.y(value), box.top + 6, box.top + box.height - 5), class: "tick y" }, number(value)));
  const under = [0, 0.5, 1].map((u) => svg("text", { x: box.left + u * box.width, y: box.top + box.height + 15, class: "tick x" }, number(u)));
  picture.replaceChildren(
    ...strip.elements,
    svg("image", { x: box.left, y: box.top, width: box.width, height: box.height, preserveAspectRatio: "none", href: pixels(spec) }),
    ...words,
    ...under,
    svg("text", { x: box.left + box.width / 2, y: height - 5, class: "axis" }, "unit time: data to noise"),
  );
  map.caption.textContent = spec.caption;
}

// Evaluations may be unevenly spaced: every row shows the nearest one.
function pixels({ heat, limit }) {
  const { images, bins, octaves } = unpack(heat);
  const rows = 240;
  const canvas = html("canvas", { width: bins, height: rows });
  const pen = canvas.getContext("2d");
  const drawn = pen.createImageData(bins, rows);
  const stops = stopsNow();
  const last = images[images.length - 1] || 1;
  for (let row = 0, place = 0; row < rows; row++) {
    const at = ((row + 0.5) / rows) * last;
    while (place + 1 < images.length && Math.abs(images[place + 1] - at) <= Math.abs(images[place] - at)) place++;
    for (let bin = 0; bin < bins; bin++) drawn.data.set([...tint(octaves[place * bins + bin], limit, stops), 255], (row * bins + bin) * 4);
  }
  pen.putImageData(drawn, 0, 0);
  return canvas.toDataURL();
}

function describeCell(map, event) {
  const { heat } = map.spec;
  const place = map.picture.getBoundingClientRect();
  const [x, y] = [event.clientX - place.left, event.clientY - place.top];
  const u = (x - map.box.left) / map.box.width;
  if (u < 0 || u >= 1 || y < map.box.top || y > map.box.top + map.box.height) return;
  const images = nearest(heat.images, map.y.invert(y));
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
  const stops = stopsNow();
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

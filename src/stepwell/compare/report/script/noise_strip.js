// An example image on its way to noise along unit time, with the log-SNR above it.

const LARGEST_TILE = 40;

function noiseStrip(noise, left, width, top) {
  if (!noise) return { elements: [], height: 0 };
  const count = noise.logSnr.length;
  const side = Math.min(width / count - 1, LARGEST_TILE);
  const every = width / count < 30 ? 3 : 1;
  const middle = (index) => left + ((index + 0.5) / count) * width;
  const elements = [svg("text", { x: left - 4, y: top + 10, class: "tick end-anchored" }, "log-SNR")];
  noise.logSnr.forEach((value, index) => {
    const size = noise.height;
    const all = svg("image", { width: size * count, height: size, href: greyPicture(noise), class: "noised" });
    elements.push(svg("svg", { x: middle(index) - side / 2, y: top + 15, width: side, height: side, viewBox: `${index * size} 0 ${size} ${size}` }, all));
    if (index % every === 0 && value !== null) elements.push(svg("text", { x: middle(index), y: top + 10, class: "tick x" }, rounded(value, width / count < 45 ? 0 : 1)));
  });
  return { elements, height: 15 + side };
}

// Never minus zero.
const rounded = (value, digits) => (Math.round(value * 10 ** digits) / 10 ** digits + 0).toFixed(digits);

function greyPicture(noise) {
  if (noise.href) return noise.href;
  const grey = Uint8Array.from(atob(noise.grey), (letter) => letter.charCodeAt(0));
  const width = grey.length / noise.height;
  const canvas = html("canvas", { width, height: noise.height });
  const pen = canvas.getContext("2d");
  const drawn = pen.createImageData(width, noise.height);
  grey.forEach((value, index) => drawn.data.set([value, value, value, 255], 4 * index));
  pen.putImageData(drawn, 0, 0);
  return (noise.href = canvas.toDataURL());
}

// Axis scales (value to pixel and back), round tick values, number formats.

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function scale(low, high, from, to, log) {
  const transform = log ? Math.log10 : (value) => value;
  const start = transform(low);
  const span = transform(high) - start || 1;
  const place = (value) => from + ((transform(value) - start) / span) * (to - from);
  place.invert = (at) => {
    const value = start + ((at - from) / (to - from)) * span;
    return log ? 10 ** value : value;
  };
  return Object.assign(place, { low, high, log });
}

function linearTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high * (1 + 1e-12) + step * 1e-9; index++) {
    ticks.push(index * step);
  }
  return ticks;
}

function ticks({ low, high, log }, count) {
  if (!(high > low)) return [low];
  if (!log) return linearTicks(low, high, count);
  for (const factors of [[1, 2, 5], [1, 3], [1]]) {
    const values = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const factor of factors) {
        const value = factor * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) values.push(value);
      }
    }
    if (values.length < 3) return linearTicks(low, high, count).filter((value) => value > 0);
    if (values.length <= count + 2 || factors.length === 1) return thinned(values, count + 2);
  }
}

const thinned = (values, most) => values.filter((_, index) => index % Math.ceil(values.length / most) === 0);

function number(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size >= 1e-3) return String(Number(value.toPrecision(3)));
  return value.toExponential(1).replace("e-", "e−");
}

function exact(value) {
  if (value === 0 || Math.abs(value) >= 1e-3) return Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
  return value.toExponential(3).replace("e-", "e−");
}

// The value of a line at x, between its points; null where the line is not.
function valueAt(line, x) {
  const { xs, ys } = line;
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  if (xs[high] <= x) low = high;
  if (ys[low] === null || ys[low] === undefined) return null;
  if (low === high || xs[low] === x || xs[high] === xs[low]) return ys[low];
  if (ys[high] === null || ys[high] === undefined) return null;
  return ys[low] + ((x - xs[low]) / (xs[high] - xs[low])) * (ys[high] - ys[low]);
}

// The lines of each chart, from the runs.

function curveSeries(workload) {
  const { metric, axis } = page.choice;
  return visible(workload.methods).map((method) => {
    const runs = workload.runs.filter((run) => run.method === method.name && run.values[metric]);
    const lines = runs.map((run) => ({ xs: run[axis], ys: run.values[metric] }));
    // A mean with a run in it that has just begun would end there.
    const finished = lines.filter((_, index) => runs[index].finished);
    return { ...method, lines, finished: finished.length > 0, mean: meanLine(finished.length ? finished : lines) };
  }).filter((one) => one.lines.some((line) => line.xs.length));
}

// The mean over seeds, where all of them have values.
function meanLine(lines) {
  const begun = lines.filter((line) => line.xs.length);
  if (begun.length <= 1) return begun[0] ?? { xs: [], ys: [] };
  const from = Math.max(...begun.map((line) => line.xs[0]));
  const to = Math.min(...begun.map((line) => line.xs[line.xs.length - 1]));
  const between = begun[0].xs.filter((x) => x > from && x < to);
  const xs = from <= to ? [...new Set([from, ...between, to])] : [];
  return { xs, ys: xs.map((x) => mean(begun.map((line) => valueAt(line, x)))) };
}

const mean = (values) => (values.some((value) => value === null) ? null : values.reduce((a, b) => a + b) / values.length);
const visible = (methods) => methods.filter((method) => !page.choice.hidden.has(method.name));

// Equal bins of unit time, a value in the middle of each.
function binned(method, values) {
  const line = { xs: values.map((_, index) => (index + 0.5) / values.length), ys: values };
  return { ...method, lines: [line], mean: line };
}

function bandSeries(workload, relative) {
  const base = workload.methods.find((method) => method.name === workload.baseline)?.bands ?? [];
  const against = relative && base.length > 0;
  return visible(workload.methods)
    .filter((method) => method.bands.length && (!against || method.bands.length === base.length))
    .map((method) => binned(method, against ? method.bands.map((value, index) => ratio(value, base[index])) : method.bands));
}

const ratio = (value, base) => (value === null || !base ? null : value / base);

function ends(series) {
  return series
    .map((one) => [one.name, one.mean.ys[one.mean.ys.length - 1]])
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => `${name} ${exact(value)}`)
    .join(", ");
}

// Whether every timestep was drawn equally often all the time.
const isEven = (heat) => unpack(heat).octaves.every((octave) => Math.abs(octave) < 0.1);

// Where in unit time a method draws most at the end.
function peak(heat) {
  const { octaves, bins, images } = unpack(heat);
  const row = Array.from(octaves.slice((images.length - 1) * bins));
  const high = Math.max(...row);
  const low = Math.min(...row);
  if (high - low < 0.1) return "At the end: uniform.";
  const at = (row.indexOf(high) + 0.5) / bins;
  return `At the end: most often at unit time ${at.toFixed(2)} (${timesUniform(high)}), least ${timesUniform(low)}.`;
}

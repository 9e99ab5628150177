// The sections of charts, drawn from the data and the chosen options.

const AXES = {
  seconds: { label: "training seconds, evaluation not counted", short: "seconds", unit: "s" },
  images: { label: "images seen", short: "images", unit: "images" },
  steps: { label: "optimizer steps", short: "steps", unit: "steps" },
};

function drawAll() {
  drawCurves();
  drawDensities();
  drawWeights();
  drawBands();
  drawProfiles();
  document.querySelectorAll("figure[data-colour]").forEach((figure) => {
    const method = page.data.methods.find((one) => one.colour === Number(figure.dataset.colour));
    figure.hidden = method !== undefined && page.choice.hidden.has(method.name);
  });
}

// One chart per workload; the section is hidden if there are none.
function plots(id, workloads, spec) {
  const section = select(`#${id}`);
  section.hidden = workloads.length === 0;
  const drawn = reuse(select(".plots", section), workloads.map((one) => one.name), lineChart);
  drawn.forEach((chart, index) => chart.draw(spec(workloads[index])));
}

function drawCurves() {
  const { metric, axis, logs, view } = page.choice;
  const name = page.data.metrics.find((one) => one.key === metric)?.name ?? metric;
  const begun = page.data.workloads.filter((one) => one.runs.some((run) => run.steps.length));
  plots("curves", begun, (workload) => {
    const series = curveSeries(workload);
    const many = series.some((one) => one.mean.xs.length > 8);
    const base = series.find((one) => one.name === workload.baseline);
    const end = base?.mean.ys[base.mean.ys.length - 1];
    return {
      series,
      level: series.length > 1 && base?.finished && end > 0 && { value: end, name: `final value of ${base.name}` },
      x: { ...AXES[axis], log: logs.has("x") },
      // The steep first steps would flatten the rest: the close view starts after 30 % of the run.
      y: { log: logs.has("y"), padding: true, from: many && view === "close" ? 0.3 : 0 },
      alt: `Learning curves on ${workload.name}: ${name} against ${AXES[axis].label}. At the end, mean over seeds: ${ends(series)}.`,
    };
  });
}

function drawDensities() {
  const maps = page.data.workloads.flatMap((workload) =>
    workload.methods.filter((method) => method.heat).map((method) => ({ workload, method, key: `${workload.name}\n${method.name}` })),
  );
  select("#densities").hidden = maps.length === 0;
  const uneven = maps.filter(({ method }) => !isEven(method.heat));
  const even = maps.filter((map) => !uneven.includes(map)).map(({ workload, method }) => (page.data.workloads.length > 1 ? `${method.name} on ${workload.name}` : method.name));
  select("#even").textContent = even.length ? `Every timestep equally often, throughout: ${even.join(", ")}.` : "";
  select("#heat-scale").hidden = uneven.length === 0;
  const shown = uneven.filter(({ method }) => !page.choice.hidden.has(method.name));
  const limit = heatLimit(maps.map(({ method }) => method.heat));
  heatScale(select("#heat-scale"), limit);
  const where = (workload) => (page.data.workloads.length > 1 ? workload.name : "");
  reuse(select(".maps"), shown.map(({ key }) => key), heatMap).forEach((map, index) => {
    const { workload, method } = shown[index];
    select(".maps").append(map.element);
    const caption = peak(method.heat);
    map.draw({ ...method, noise: workload.noise, limit, caption, where: where(workload), alt: `Density of ${method.name} on ${workload.name} over training. ${caption}` });
  });
}

const UNIT_TIME = { label: "unit time: 0 is data, 1 is noise", unit: "unit time", include: [0, 1] };

// Where every weight is 1 a sentence says as much as a chart.
function drawWeights() {
  const known = page.data.workloads.filter((one) => one.methods.some((method) => method.weight.length));
  const weighted = known.filter((one) => one.methods.some((method) => method.weight.some((weight) => Math.abs(weight - 1) > 0.02)));
  const alike = known.filter((one) => !weighted.includes(one)).map((one) => one.name);
  select("#alike").textContent = alike.length ? `All methods weigh all timesteps alike on ${alike.join(", ")}.` : "";
  plots("weights", weighted, (workload) => {
    const series = visible(workload.methods).filter((method) => method.weight.length).map((method) => binned(method, method.weight));
    const tops = series.map((one) => `${one.name} ${exact(Math.max(...one.mean.ys))}`).join(", ");
    return {
      series,
      x: { ...UNIT_TIME, noise: workload.noise },
      y: { zero: true, padding: true, rule: 1, include: [0] },
      snap: true, step: true, highFirst: true,
      alt: `Effective weight over unit time on ${workload.name}. Highest: ${tops}.`,
    };
  });
  select("#weights").hidden = known.length === 0;
}

function drawBands() {
  const known = page.data.workloads.filter((one) => one.methods.some((method) => method.bands.length));
  // Over itself a method is 1 everywhere.
  select("#band-scale").hidden = !known.some((one) => one.methods.length > 1);
  plots("bands", known, (workload) => {
    const against = page.choice.bands === "ratio" && workload.methods.length > 1;
    const series = bandSeries(workload, against);
    const what = against ? `Loss per band divided by that of ${workload.baseline}` : "Loss per band";
    return {
      series,
      x: { ...UNIT_TIME, noise: workload.noise },
      y: { log: true, padding: true, include: against ? [1] : [] },
      level: against && series.length > 0 && { value: 1, name: `equal to ${workload.baseline}; below is better` },
      snap: true, step: true,
      alt: `${what} on ${workload.name}. Lowest and highest: ${series.map((one) => `${one.name} ${spread(one)}`).join(", ")}.`,
    };
  });
}

function spread(one) {
  const known = one.mean.ys.filter((value) => value !== null);
  return known.length ? `${exact(Math.min(...known))} to ${exact(Math.max(...known))}` : "nothing";
}

function drawProfiles() {
  const all = page.data.profiles.length ? [{ name: "All workloads" }] : [];
  plots("profiles", all, () => {
    const series = visible(page.data.profiles).map((one) => {
      const line = staircase(one.factors, one.shares);
      return { ...one, lines: [line], mean: line };
    });
    return {
      series,
      x: { label: "time to target relative to the fastest", unit: "× the fastest", log: true },
      y: { include: [0, 1], padding: true, zero: true },
      highFirst: true,
      alt: `Performance profiles: share of workloads and seeds within a factor of the fastest. At the right end: ${ends(series)}.`,
    };
  });
}

// A step function: a share is constant until the next factor.
function staircase(factors, shares) {
  const line = { xs: [], ys: [] };
  factors.forEach((factor, index) => {
    if (index > 0) {
      line.xs.push(factor);
      line.ys.push(shares[index - 1]);
    }
    line.xs.push(factor);
    line.ys.push(shares[index]);
  });
  return line;
}

"""`stepwell analyze densities`: which timesteps methods draw, over training (Kim et al. 2025, Figs. 5, 6)."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.analyze.run_or_workload import plan_of
from stepwell.cli.options import SPEC, add_command, add_json, add_save, output
from stepwell.cli.time_axis import label_curves, noised_above
from stepwell.compare.report import DENSITY
from stepwell.compare.results import run_directories
from stepwell.core.errors import StepwellError, UnknownName
from stepwell.runs.directory import RECIPE

if TYPE_CHECKING:
    from stepwell.analyze.densities import Densities
    from stepwell.core.process import NoiseProcess

_EXAMPLES = """examples:
  stepwell analyze densities uniform min-snr p2 logit-normal speed --save densities.png
  stepwell analyze densities runs/fashion16-neyman-0 runs/fashion16-beta-policy-0 min-snr
  stepwell analyze densities logit-normal+min-snr vlb --process cosine

As in the paper, weights are shown as probabilities: weight x density with mean 1. Corrected draws do not
change the objective and are shown without weights.
"""


def register(analyses: Any) -> None:
    """Add the analysis to the command line."""
    parser = add_command(
        analyses,
        "densities",
        run,
        help="which timesteps methods draw, over training (the paper's Figs. 5 and 6)",
        description="Show which timesteps methods draw: as runs recorded it, or by their formulas.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "what", nargs="+", metavar="RUN|METHOD", help="run directories, or what method= takes"
    )
    parser.add_argument(
        "-p",
        "--process",
        metavar=SPEC,
        help="the process of methods (default: the first run's, or linear)",
    )
    add_json(parser)
    add_save(parser)


def run(options: argparse.Namespace) -> None:
    """Read or compute, print."""
    chart.check_save(options.save)
    given = [run for what in options.what for run in _runs_of(what)]
    runs = [what for what in given if Path(what).is_dir()]
    process = options.process or (plan_of(runs[0]).recipe.process if runs else "linear")
    found = [_of_run(what) if what in runs else _of_method(what, process) for what in given]
    methods = [densities for densities, _ in found]
    text = "\n".join(map(_report, methods))
    output(options, [asdict(one) for one in methods], text, lambda path: _draw(found, path))


def _runs_of(what: str) -> list[str]:
    """The runs of a study's folder, one of each workload and method; anything else is itself."""
    if not Path(what).is_dir() or (Path(what) / RECIPE).is_file():
        return [what]
    runs = [run for run in run_directories(Path(what)) if (run / RECIPE).is_file()]
    if not runs:
        raise StepwellError(f"{what} has no runs in it: name a run, a folder of runs or a method.")
    return [str(run) for run in {run.parent: run for run in reversed(runs)}.values()][::-1]


def _of_run(what: str) -> tuple[Densities, NoiseProcess]:
    from stepwell.analyze.densities import of_run

    plan = plan_of(what)
    title = f"{what} ({plan.recipe.method} on {plan.recipe.process})"
    return of_run(title, Path(what), plan.sampler(), plan.process), plan.process


def _of_method(what: str, over: str) -> tuple[Densities, NoiseProcess]:
    from stepwell.analyze.densities import of_method
    from stepwell.catalogue import build
    from stepwell.recipes.method import parse_method

    process = build.as_process(over)
    try:
        method = parse_method(what)
    except UnknownName as error:
        if "/" in what:
            raise StepwellError(f"{what} is neither a run directory nor a method.") from None
        raise error
    sampler = build.sampler(method.sampler, process)
    weighting = build.weighting(method.weighting)
    return of_method(f"{what} on {over}", sampler, weighting, process), process


def _report(method: Densities) -> str:
    """Bars at the first, middle and last moment."""
    count, last = len(method.moments[0].density), chart.last_time(method.timesteps)
    borders = [place / count for place in range(count + 1)]
    lines = [method.name]
    if method.learns and not method.recorded:
        lines += ["It learns: this is its density before training. Give a run directory to see it change."]
    if method.corrected:
        lines += ["Its draws are corrected: the objective is unchanged."]
    for at in method.selected():
        when = f"step {at.step}: " if method.recorded else ""
        if method.corrected or _is_unweighted(at.density, at.effective):
            lines += ["", chart.bars(f"{when}draws (uniform = 1)", at.density, borders, last)]
        else:
            title = f"{when}weight x draws, as a density (uniform = 1)"
            lines += ["", chart.bars(title, at.effective, borders, last)]
    return "\n".join([*lines, ""])


def _is_unweighted(density: Sequence[float], effective: Sequence[float]) -> bool:
    """Whether the effective density is that of the draws alone, up to its mean."""
    mean = sum(density) / len(density)
    return all(abs(a - b * mean) < 1e-3 * max(1.0, a) for a, b in zip(density, effective, strict=True))


def _draw(methods: Sequence[tuple[Densities, NoiseProcess]], path: Path) -> None:
    """A heat map over training for every run, and one panel of lines for methods by formula."""
    runs = [each for each in methods if len(each[0].moments) > 1]
    formulas = [each for each in methods if len(each[0].moments) == 1]
    figure, panels = chart.panels(len(runs) + bool(formulas), 5.0, _HEIGHT + 1.3, margin=0.8)
    limit = _limit([each for each, _ in runs])
    for axes, (each, process) in zip(panels, runs, strict=False):
        mesh = _heat(axes, each, limit)
        noised_above(axes, {"": process}, _HEIGHT)
    if runs:
        octaves = range(-limit, limit + 1)
        bar = figure.colorbar(mesh, ax=panels[: len(runs)], extend="both")
        bar.ax.set_title("over\nuniform", fontsize=8)
        bar.set_ticks(octaves, labels=[f"{2**n}x" if n >= 0 else f"1/{2**-n}x" for n in octaves])
    if formulas:
        _lines(panels[-1], [each for each, _ in formulas])
        noised_above(panels[-1], {"": formulas[0][1]}, _HEIGHT)
    chart.write(figure, path)


_HEIGHT = 2.8
"""Of a panel, in inches."""


def _limit(runs: Sequence[Densities]) -> int:
    """The end of the colour scale in octaves, as in the report: it holds 98 % of all values."""
    sizes = sorted(abs(_octave(value)) for each in runs for row in each.compared for value in row)
    return min(max(math.ceil(sizes[int(0.98 * (len(sizes) - 1))] - 0.1), 1), 4) if sizes else 1


def _octave(height: float) -> float:
    return math.log2(max(height, 2.0**-6))


def _heat(axes: Any, run: Densities, limit: int) -> Any:
    """Unit time from left to right, training from top to bottom, in the report's colours."""
    from matplotlib.colors import LinearSegmentedColormap

    steps = [at.step for at in run.moments]
    middles = [(a + b) / 2 for a, b in pairwise(steps)]
    count = len(run.compared[0])
    edges = [max(0.0, 2 * steps[0] - middles[0]), *middles, 2 * steps[-1] - middles[-1]]
    borders = [place / count for place in range(count + 1)]
    values = [[_octave(height) for height in row] for row in run.compared]
    colours = LinearSegmentedColormap.from_list("density", DENSITY)
    mesh = axes.pcolormesh(borders, edges, values, cmap=colours, vmin=-limit, vmax=limit, rasterized=True)
    axes.invert_yaxis()
    what = "draws, corrected" if run.corrected else "weight x draws"
    # Long titles of neighbouring panels would overlap on one line.
    title = run.name.replace(" (", "\n(")
    axes.set_title(f"{title}\n{what}", fontsize=9, pad=_ABOVE)
    axes.set_xlabel(chart.TIME_AXIS)
    axes.set_ylabel("step")
    return mesh


_ABOVE = 50
"""Points that the noised images take above a panel."""


def _lines(axes: Any, methods: Sequence[Densities]) -> None:
    curves, labels = [], []
    for index, each in enumerate(methods):
        count = len(each.compared[0])
        curves.append(([(place + 0.5) / count for place in range(count)], each.compared[0]))
        labels.append(each.name + (" (draws, corrected)" if each.corrected else ""))
        axes.plot(*curves[-1], **chart.line_style(index))
    chart.time_axes(axes)
    label_curves(axes, curves, labels)
    axes.set_title("weight x draws, by formula", fontsize=9, pad=_ABOVE)
    axes.set_xlabel(chart.TIME_AXIS)
    axes.set_ylabel("density (uniform = 1)")

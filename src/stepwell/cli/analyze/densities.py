"""`stepwell analyze densities`: where methods look, over training (Kim et al. 2025, Figs. 5 and 6)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.analyze import figure
from stepwell.cli.analyze.run_or_workload import plan_of
from stepwell.core.errors import StepwellError, UnknownName
from stepwell.runs.io import finite

if TYPE_CHECKING:
    from stepwell.analyze.densities import Densities

_EXAMPLES = """examples:
  stepwell analyze densities uniform min-snr p2 logit-normal speed --save densities.png
  stepwell analyze densities runs/fashion16-neyman-0 runs/fashion16-beta-policy-0 min-snr
  stepwell analyze densities logit-normal+min-snr vlb --process cosine

Weights are shown as probabilities, as in the paper: weight x density with mean 1. Draws that are
corrected leave the objective as it is, and are shown as they are.
"""


def register(subjects: Any) -> None:
    """Add the subject to the command line."""
    parser = subjects.add_parser(
        "densities",
        help="where methods look, over training",
        description="Show where methods look: as runs recorded it, or by their formulas.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="+", metavar="RUN|METHOD", help="run directories, or what method= takes"
    )
    parser.add_argument(
        "-p",
        "--process",
        metavar="NAME[:key=value,...]",
        help="of methods (default: the first run's, or linear)",
    )
    parser.add_argument("--json", action="store_true", help="the numbers, for programs")
    figure.add_save(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Read or compute, print."""
    figure.check(options.save)
    runs = [what for what in options.what if Path(what).is_dir()]
    process = options.process or (plan_of(runs[0]).recipe.process if runs else "linear")
    found = [_of_run(what) if what in runs else _of_method(what, process) for what in options.what]
    if options.save is not None:
        _draw(found, options.save)
    if options.json:
        print(json.dumps(finite([each.plain() for each in found])))
        return
    for each in found:
        print(_report(each, fancy=chart.can_draw_blocks(sys.stdout)))
    if options.save is not None:
        print(f"Saved {options.save}")


def _of_run(what: str) -> Densities:
    from stepwell.analyze.densities import of_run

    plan = plan_of(what)
    title = f"{what} ({plan.recipe.method} on {plan.recipe.process})"
    return of_run(title, Path(what), plan.sampler(), plan.process)


def _of_method(what: str, over: str) -> Densities:
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
    return of_method(f"{what} on {over}", sampler, weighting, process)


def _report(found: Densities, fancy: bool) -> str:
    """Bars at the start, the middle and the end."""
    count, last = len(found.moments[0].density), chart.last_time(found.timesteps)
    borders = [place / count for place in range(count + 1)]
    lines = [found.name]
    if found.learns and not found.recorded:
        lines += ["It learns: this is where it starts. Give a run directory to see where it went."]
    if found.corrected:
        lines += ["Its draws are corrected: the objective stays as it is."]
    for at in found.told():
        when = f"step {at.step}: " if found.recorded else ""
        if found.corrected or _alike(at.density, at.effective):
            lines += ["", chart.bars(f"{when}draws (uniform = 1)", at.density, borders, last, fancy)]
        else:
            title = f"{when}weight x draws, as a density (uniform = 1)"
            lines += ["", chart.bars(title, at.effective, borders, last, fancy)]
    return "\n".join([*lines, ""])


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether nothing but the draws makes the effective density (up to its mean over the points)."""
    mean = sum(one) / len(one)
    return all(abs(a - b * mean) < 1e-3 * max(1.0, a) for a, b in zip(one, other, strict=True))


def _draw(found: Sequence[Densities], path: Path) -> None:
    """A heat map over training for every run, and lines for methods known by their formula."""
    moving = [each for each in found if len(each.moments) > 1]
    still = [each for each in found if len(each.moments) == 1]
    count = len(moving) + bool(still)
    columns = min(count, 3)
    rows = -(-count // columns)
    picture = figure.blank(5.0 * columns + 0.8, 3.8 * rows)
    grid = picture.subplots(rows, columns, squeeze=False)
    panels = [axes for row in grid for axes in row]
    for unused in panels[count:]:
        unused.set_visible(False)
    top = _top(moving)
    for axes, each in zip(panels, moving, strict=False):
        mesh = _heat(axes, each, top)
    if moving:
        picture.colorbar(mesh, ax=panels[: len(moving)], label="density (uniform = 1)", extend="max")
    if still:
        _lines(panels[len(moving)], still)
    figure.write(picture, path)


def _top(moving: Sequence[Densities]) -> float:
    """The end of the colour scale: all but the highest hundredth, which would leave the rest dark."""
    values = sorted(value for each in moving for row in each.compared for value in row)
    return max(values[int(0.99 * (len(values) - 1))], 1.0) if values else 1.0


def _heat(axes: Any, found: Densities, top: float) -> Any:
    steps = [at.step for at in found.moments]
    middles = [(a + b) / 2 for a, b in pairwise(steps)]
    count = len(found.compared[0])
    edges = [max(0.0, 2 * steps[0] - middles[0]), *middles, 2 * steps[-1] - middles[-1]]
    borders = [place / count for place in range(count + 1)]
    mesh = axes.pcolormesh(borders, edges, found.compared, cmap="viridis", vmin=0, vmax=top, rasterized=True)
    what = "draws, corrected" if found.corrected else "weight x draws"
    # The run and what it is on lines of their own: two such titles would run into each other.
    title = found.name.replace(" (", "\n(")
    axes.set_title(f"{title}\n{what}", fontsize=9)
    axes.set_xlabel("unit time u: 0 is data, 1 is noise")
    axes.set_ylabel("step")
    return mesh


def _lines(axes: Any, still: Sequence[Densities]) -> None:
    from stepwell.compare.views import COLOURS

    for index, each in enumerate(still):
        count = len(each.compared[0])
        middles = [(place + 0.5) / count for place in range(count)]
        style = ("-", "--", ":")[index // len(COLOURS) % 3]
        label = each.name + (" (draws, corrected)" if each.corrected else "")
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(middles, each.compared[0], style, color=colour, label=label, lw=1.6)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("weight x draws, by formula", fontsize=9)
    axes.set_xlabel("unit time u: 0 is data, 1 is noise")
    axes.set_ylabel("density (uniform = 1)")
    axes.legend(frameon=False, fontsize=8)

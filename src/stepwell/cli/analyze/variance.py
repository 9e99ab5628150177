"""`stepwell analyze variance`: where in time gradients are noisy and losses are high, over training."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.analyze import figure
from stepwell.cli.analyze.run_or_workload import add_arguments, count, moments, whole_numbers
from stepwell.cli.options import require_extra
from stepwell.core.errors import StepwellError
from stepwell.runs.io import finite

if TYPE_CHECKING:
    from stepwell.analyze.estimates import Estimate
    from stepwell.analyze.variance import Variance

_EXAMPLES = """examples:
  stepwell analyze variance runs/fashion16-uniform-0 --save variance.png
  stepwell analyze variance fashion16 model=micro process=cosine --at 0,50,200
  stepwell analyze variance fashion16 data=my/photos steps=500 --strata 50 --metric adam

A run is measured at every checkpoint it keeps (train with keep=20 to have more), a workload after a short
training (steps=200) of which nothing is written.
"""


def register(subjects: Any) -> None:
    """Add the subject to the command line."""
    parser = subjects.add_parser(
        "variance",
        help="the gradient's variance and the loss over time (the paper's Fig. 2 and 6)",
        description="Measure in every stratum of time the variance of one example's gradient and its loss, "
        "for the simple loss and for the bound, at one or several moments of training.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument("--at", metavar="STEP,...", help="moments of training, such as 0,50,200")
    parser.add_argument("--held-out", action="store_true", help="held-out images, not those trained on")
    parser.add_argument("--metric", choices=("plain", "adam"), default="plain", help="Adam's: as it steps")
    parser.add_argument("--strata", type=int, default=20, help="parts of time")
    # A few directions hold most of the variance, so each round tells little of it: many small ones tell more.
    parser.add_argument("--rounds", type=int, default=10, help="at least 3: they make the intervals")
    parser.add_argument("--images", type=int, default=8, help="in each of a stratum's two halves")
    figure.add_save(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load or train, measure at every moment, print."""
    require_extra()
    figure.check(options.save)
    from stepwell.analyze.estimates import Effort
    from stepwell.analyze.variance import variance

    effort = Effort(options.strata, options.rounds, options.images)
    found: dict[int, Variance] = {}
    title, last = "", ""
    for made, training, steps in moments(options, whole_numbers("--at", options.at)):
        source = made.data.held_out if options.held_out else made.data.train
        found[steps] = variance(training, source, effort, options.metric, count)
        title = f"{options.what}: {made.recipe.method} on {made.recipe.process}"
        last = chart.last_time(made.process.timesteps)
    if not found:
        raise StepwellError(f"{options.what} has no checkpoint that can be read.")
    if options.save is not None:
        _draw(found, title, options.save)
    if options.json:
        moved = [{"steps": steps, **each.plain()} for steps, each in found.items()]
        print(json.dumps(finite({"moments": moved})))
        return
    print(title)
    print(_report(found, last))
    if options.save is not None:
        print(f"\nSaved {options.save}")


def _report(found: dict[int, Variance], last: str) -> str:
    fancy = chart.can_draw_blocks(sys.stdout)
    steps, newest = list(found.items())[-1]
    lines = [f"{newest.gradients} gradients a stratum in the {_metric(newest)} metric, after {steps} steps"]
    for name, curve in newest.curves.items():
        for values, what in ((curve.variance, "variance of one example's gradient"), (curve.loss, "loss")):
            heights = [max(each.value, 0.0) for each in values]
            lines += ["", chart.bars(f"{name}: {what}", heights, newest.borders, last, fancy)]
    lines += ["", *(f"No {name}: {why}" for name, why in newest.missing.items())]
    lines += [_cells("steps", "objective", "variance", "largest", "at", "over least", "loss")]
    for step, each in found.items():
        lines += [_row(step, name, each) for name in each.curves]
    return "\n".join(lines)


def _row(steps: int, name: str, found: Variance) -> str:
    curve = found.curves[name]
    values = [each.value for each in curve.variance]
    top = values.index(max(values))
    place = f"{found.borders[top]:.2f}-{found.borders[top + 1]:.2f}"
    over = f"{max(values) / min(values):.3g}x" if min(values) > 0 else "-"
    numbers = [f"{number:.3g}" for number in (_mean(curve.variance), max(values), _mean(curve.loss))]
    return _cells(str(steps), name, *numbers[:2], place, over, numbers[2])


def _cells(*words: str) -> str:
    widths = (8, 11, 11, 11, 11, 12, 11)
    return "".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=True))


def _mean(values: Sequence[Estimate]) -> float:
    return sum(each.value for each in values) / len(values)


def _metric(found: Variance) -> str:
    return "Adam's" if found.metric == "adam" else "plain"


def _draw(found: dict[int, Variance], title: str, path: Path) -> None:
    """Variance above and loss below, a column for each objective, a line for each moment."""
    names = list(next(iter(found.values())).curves)
    picture = figure.blank(5.2 * len(names) + 0.6, 6.4)
    picture.suptitle(title, fontsize=11)
    grid = picture.subplots(2, len(names), sharex=True, squeeze=False)
    for column, name in enumerate(names):
        for place, (steps, each) in enumerate(found.items()):
            # Later is darker.
            shade = str(0.75 * (1 - (place + 1) / len(found))) if len(found) > 1 else "0.1"
            middles = [(a + b) / 2 for a, b in zip(each.borders, each.borders[1:], strict=False)]
            for row, values in enumerate((each.curves[name].variance, each.curves[name].loss)):
                axes = grid[row][column]
                axes.plot(middles, [v.value for v in values], color=shade, lw=1.6, label=f"{steps} steps")
                if place == len(found) - 1:
                    low, high = [v.low for v in values], [v.high for v in values]
                    axes.fill_between(middles, low, high, color=shade, alpha=0.15, lw=0)
        grid[0][column].set_title(name, fontsize=10)
        grid[1][column].set_xlabel("unit time u: 0 is data, 1 is noise")
    _finish(grid, _metric(next(iter(found.values()))))
    figure.write(picture, path)


def _finish(grid: Any, metric: str) -> None:
    grid[0][0].set_ylabel(f"variance of one example's\ngradient ({metric} metric)")
    grid[1][0].set_ylabel("loss of one example")
    for axes in grid.flat:
        drawn = [y for line in axes.lines for y in line.get_ydata() if y > 0]
        if drawn:
            # An interval that reaches 0 has no end on this scale: the lines decide what is shown.
            axes.set_yscale("log")
            axes.set_ylim(min(drawn) / 2, max(drawn) * 2)
        axes.set_xlim(0, 1)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0][0].legend(frameon=False, fontsize=8)

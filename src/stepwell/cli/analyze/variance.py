"""`stepwell analyze variance`: the gradient's variance and the loss over time, at steps of training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.analyze.run_or_workload import add_arguments, add_effort, effort_of, moments
from stepwell.cli.columns import table
from stepwell.cli.options import add_command, add_save, begin, number, output, whole_numbers
from stepwell.cli.progress import measuring
from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.analyze.variance import Variance
    from stepwell.core.estimates import Estimate

_EXAMPLES = """examples:
  stepwell analyze variance runs/fashion16-uniform-0 --save variance.png
  stepwell analyze variance fashion16 model=micro process=cosine --at 0,50,200
  stepwell analyze variance fashion16 process=cosine --cap 1
  stepwell analyze variance fashion16 data=my/photos steps=500 --strata 50 --metric adam

The bound has its own weights, as in the paper: on cosine the last timestep's is 499.5. --cap holds them down.
A run that trained with them, as the paper's Fig. 6 does: stepwell train fashion16 method=vlb:cap=none out=RUN

A run is measured at every checkpoint it keeps (train with keep=20 to have more), a workload after a short
training (steps=200) of which nothing is written.
"""


def register(analyses: Any) -> None:
    """Add the analysis to the command line."""
    parser = add_command(
        analyses,
        "variance",
        run,
        help="the gradient's variance and the loss over time (the paper's Fig. 2 and 6)",
        description="Measure in every stratum of time the variance of one example's gradient and its loss, "
        "for the simple loss and for the bound, at one or several steps of training.",
        examples=_EXAMPLES,
    )
    add_arguments(parser)
    parser.add_argument("--at", metavar="STEP,...", help="steps of training, such as 0,50,200")
    parser.add_argument("--held-out", action="store_true", help="measure on held-out images")
    parser.add_argument(
        "--metric", choices=("plain", "adam"), default="plain", help="adam: scaled by Adam's preconditioner"
    )
    parser.add_argument(
        "--cap",
        type=number,
        metavar="WEIGHT",
        help="largest weight of the bound (default: none, as the paper)",
    )
    # A few directions hold most of the variance: many small rounds estimate it better than few large ones.
    add_effort(parser, rounds=10, images=8)
    add_save(parser)


def run(options: argparse.Namespace) -> None:
    """Load or train, measure at every moment, print."""
    begin(f"variance of {options.what}")
    chart.check_save(options.save)
    from stepwell.analyze.gradient_rounds import gradient_rounds
    from stepwell.analyze.variance import variance

    effort = effort_of(options)
    by_step: dict[int, Variance] = {}
    title, last = "", ""
    for moment in moments(options, whole_numbers("--at", options.at)):
        data = moment.experiment.data
        source = data.held_out if options.held_out else data.train
        gradients = gradient_rounds(moment.training, source, effort, progress=measuring)
        by_step[moment.steps] = variance(gradients, options.metric, options.cap)
        title = moment.title(options.what)
        last = chart.last_time(moment.experiment.process.timesteps)
    if not by_step:
        raise StepwellError(f"{options.what} has no checkpoint that can be read.")
    values = {"moments": [{"steps": steps, **asdict(each)} for steps, each in by_step.items()]}
    text = f"{title}\n{_report(by_step, last)}"
    output(options, values, text, lambda path: _draw(by_step, title, path))


def _report(by_step: dict[int, Variance], last: str) -> str:
    steps, newest = list(by_step.items())[-1]
    lines = [f"{newest.gradients} gradients a stratum in the {_metric(newest)} metric, after {steps} steps"]
    if "bound" in newest.curves:
        weights = "its own" if newest.cap is None else f"at most {newest.cap:g}"
        lines.append(f"weights of the bound: {weights}")
    for name, curve in newest.curves.items():
        for values, what in ((curve.variance, "variance of one example's gradient"), (curve.loss, "loss")):
            heights = [max(each.value, 0.0) for each in values]
            lines += ["", chart.bars(f"{_title(name, newest)}: {what}", heights, newest.borders, last)]
    lines += ["", *(f"No {name}: {why}" for name, why in newest.missing.items())]
    rows = [["steps", "objective", "variance", "largest", "at", "over least", "loss"]]
    rows += [_row(step, name, each) for step, each in by_step.items() for name in each.curves]
    return "\n".join([*lines, *table(rows, right=True)])


def _row(steps: int, name: str, variance: Variance) -> list[str]:
    curve = variance.curves[name]
    values = [each.value for each in curve.variance]
    top = values.index(max(values))
    place = f"{variance.borders[top]:.2f}-{variance.borders[top + 1]:.2f}"
    over = f"{max(values) / min(values):.3g}x" if min(values) > 0 else "-"
    numbers = [f"{number:.3g}" for number in (_mean(curve.variance), max(values), _mean(curve.loss))]
    return [str(steps), name, *numbers[:2], place, over, numbers[2]]


def _mean(values: Sequence[Estimate]) -> float:
    return sum(each.value for each in values) / len(values)


def _title(name: str, variance: Variance) -> str:
    """An objective, and what holds its weights down."""
    capped = name == "bound" and variance.cap is not None
    return f"{name} with weights capped at {variance.cap:g}" if capped else name


def _metric(variance: Variance) -> str:
    return "Adam's" if variance.metric == "adam" else "plain"


def _draw(by_step: dict[int, Variance], title: str, path: Path) -> None:
    """Variance above and loss below, a column for each objective, a line for each step."""
    first = next(iter(by_step.values()))
    names = list(first.curves)
    figure = chart.blank(5.2 * len(names) + 0.6, 6.4)
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(2, len(names), sharex=True, squeeze=False)
    for column, name in enumerate(names):
        for place, (steps, each) in enumerate(by_step.items()):
            # Later is darker.
            shade = str(0.75 * (1 - (place + 1) / len(by_step))) if len(by_step) > 1 else "0.1"
            middles = [(a + b) / 2 for a, b in zip(each.borders, each.borders[1:], strict=False)]
            for row, values in enumerate((each.curves[name].variance, each.curves[name].loss)):
                axes = grid[row][column]
                axes.plot(middles, [v.value for v in values], color=shade, lw=1.6, label=f"{steps} steps")
                if place == len(by_step) - 1:
                    low, high = [v.low for v in values], [v.high for v in values]
                    axes.fill_between(middles, low, high, color=shade, alpha=0.15, lw=0)
        grid[0][column].set_title(_title(name, first), fontsize=10)
        grid[1][column].set_xlabel(chart.TIME_AXIS)
    grid[0][0].set_ylabel(f"variance of one example's\ngradient ({_metric(first)} metric)")
    grid[1][0].set_ylabel("loss of one example")
    for axes in grid.flat:
        drawn = [y for line in axes.lines for y in line.get_ydata() if y > 0]
        if drawn:
            # Intervals that reach 0 have no end on this scale: the lines set the range.
            axes.set_yscale("log")
            axes.set_ylim(min(drawn) / 2, max(drawn) * 2)
        chart.time_axes(axes, bottom=None)
    grid[0][0].legend(frameon=False, fontsize=8)
    chart.write(figure, path)

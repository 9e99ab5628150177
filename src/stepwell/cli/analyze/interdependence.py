"""`stepwell analyze interdependence`: what training on one part of time does to the others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.analyze.run_or_workload import add_arguments, add_effort, effort_of, last_moment
from stepwell.cli.columns import table
from stepwell.cli.options import add_command, add_save, begin, output, whole
from stepwell.cli.progress import measuring
from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.analyze.interdependence import Alignments, Interdependence, Losses, Transfer
    from stepwell.cli.analyze.run_or_workload import Moment

_EXAMPLES = """examples:
  stepwell analyze interdependence runs/fashion16-uniform-0 --save interdependence.png
  stepwell analyze interdependence runs/fashion16-uniform-0 --range 0,0.2 --steps 200
  stepwell analyze interdependence fashion16 model=micro steps=500 --ranges 10

A copy continues training on each range of time alone; nothing is written, and a run stays as it is.
"""
_COLUMNS = 10
"""Bands that fit into a line of text."""
_SHADES = (" ░▒▓█", "-=≡")
_ASCII = (" .:+#", "-=%")
"""Marks of positive cosines to 0.1, 0.3, 0.6, 0.9 and above, and of negative ones to 0.3, 0.6 and below."""
_COLOURS = "RdBu_r"
"""Red where the loss rises, blue where it falls."""


def register(analyses: Any) -> None:
    """Add the analysis to the command line."""
    parser = add_command(
        analyses,
        "interdependence",
        run,
        help="what training on one part of time does to the others (the paper's Fig. 4)",
        description="Train a copy on one range of time only and measure the held-out loss in every band; "
        "and compare the directions of the gradients of all strata.",
        examples=_EXAMPLES,
    )
    add_arguments(parser)
    parser.add_argument(
        "--ranges", type=whole(1000), default=5, metavar="N", help="equal ranges of time to train on (5)"
    )
    parser.add_argument("--range", action="append", metavar="LOW,HIGH", help="train on this range of time")
    parser.add_argument("--steps", type=whole(100_000), default=50, help="training steps on each range (50)")
    parser.add_argument(
        "--repeats", type=whole(1000), default=3, help="repeats for the intervals, at least 3 (3)"
    )
    parser.add_argument(
        "--bands", type=whole(1000), help="bands of time of the losses (default: the recipe's)"
    )
    parser.add_argument(
        "--metric", choices=("adam", "plain"), default="adam", help="of gradients; adam: as Adam scales them"
    )
    add_effort(parser, rounds=5, images=16)
    add_save(parser)


def run(options: argparse.Namespace) -> None:
    """Load or train, train on each range, compare gradients, print."""
    begin(f"interdependence of {options.what}")
    chart.check_save(options.save)
    from stepwell.analyze.gradient_rounds import gradient_rounds
    from stepwell.analyze.interdependence import Continuation, Interdependence, alignments, transfer

    plan = Continuation(_ranges(options), options.steps, options.repeats)
    moment = last_moment(options)
    train = moment.experiment.data.train
    gradients = gradient_rounds(moment.training, train, effort_of(options), progress=measuring)
    aligned = alignments(gradients, options.metric)
    losses = _held_out(moment, options.bands)
    changes = transfer(moment.training, moment.steps, losses, plan, measuring)
    result = Interdependence(changes, aligned)
    title = f"{moment.title(options.what)}, after {moment.steps} steps"
    values = {"steps": moment.steps, **asdict(result)}
    output(options, values, f"{title}\n\n{_report(result)}", lambda path: _draw(result, title, path))


def _ranges(options: argparse.Namespace) -> tuple[tuple[float, float], ...]:
    if not options.range:
        if options.ranges < 1:
            raise StepwellError(f"--ranges {options.ranges}: give at least 1.")
        return tuple((k / options.ranges, (k + 1) / options.ranges) for k in range(options.ranges))
    ranges = []
    for text in options.range:
        try:
            low, high = (float(word) for word in text.split(","))
        except ValueError:
            raise StepwellError(f"--range {text}: write LOW,HIGH in unit time, as in 0,0.2.") from None
        ranges.append((low, high))
    return tuple(ranges)


def _held_out(moment: Moment, bands: int | None) -> Losses:
    """The recipe's held-out losses, in so many bands."""
    from stepwell.recipes.training import evaluation_of

    experiment = moment.experiment
    if bands is not None:
        experiment = replace(experiment, plan=experiment.plan.with_settings(bands=bands))
    evaluate = evaluation_of(experiment, moment.training.accelerator.device)

    def losses(network: Any) -> Sequence[float]:
        bands: list[float] = evaluate(network)["bands"]
        return bands

    return losses


def _report(result: Interdependence) -> str:
    changes = result.transfer
    lines = [
        f"Held-out loss after {changes.steps} more steps on one range of time, change in % of before:",
        "",
        *_changes(changes),
        "",
        _counted(changes),
        "",
        *_shaded(result.alignments),
    ]
    return "\n".join(lines)


def _changes(transfer: Transfer) -> list[str]:
    """A line for each range; neighbouring bands are merged where there are too many."""
    bands = len(transfer.before)
    groups = [slice(k * bands // _COLUMNS, (k + 1) * bands // _COLUMNS) for k in range(_COLUMNS)]
    groups = groups if bands > _COLUMNS else [slice(k, k + 1) for k in range(bands)]
    rows = [["trained on", *(f"{transfer.borders[group.start]:.2f}-" for group in groups)]]
    for (low, high), row in zip(transfer.ranges, transfer.change, strict=True):
        cells = [100 * sum(row[group]) / sum(transfer.before[group]) for group in groups]
        rows.append([f"{low:.2f}-{high:.2f}", *(f"{cell:+.1f}" for cell in cells)])
    return table(rows, right=True)


def _counted(transfer: Transfer) -> str:
    """How many bands outside the trained range rose and fell by more than their interval."""
    rose = fell = outside = 0
    for (low, high), change, margin in zip(transfer.ranges, transfer.change, transfer.margin, strict=True):
        for start, end, value, around in zip(
            transfer.borders, transfer.borders[1:], change, margin, strict=False
        ):
            if end <= low or start >= high:
                outside += 1
                rose, fell = rose + (value > around), fell + (value < -around)
    return (
        f"Outside the trained range the loss rose in {rose} and fell in {fell} of {outside} cells; in\n"
        f"{outside - rose - fell} the change is within its 95 % interval over repeats.\n"
        "The last row is a control, trained on all of time: what it shows too is not interdependence."
    )


def _shaded(alignments: Alignments) -> list[str]:
    """The cosines as characters, two for each stratum."""
    metric = "Adam's" if alignments.metric == "adam" else "the plain"
    up, down = _SHADES if chart.can_draw_blocks() else _ASCII
    lines = [f"Cosines of the strata's mean gradients, in {metric} metric (the effect of small steps):", ""]
    for low, row in zip(alignments.borders, alignments.cosine, strict=False):
        lines.append(f"{low:>11.2f}- " + "".join(2 * _mark(value, up, down) for value in row))
    levels = "0.1", "0.3", "0.6", "0.9", "1"
    legend = "  ".join(f"{2 * mark} to {level}" for mark, level in zip(up[1:], levels[1:], strict=True))
    below = "  ".join(
        f"{2 * mark} to -{level}" for mark, level in zip(down, ("0.3", "0.6", "1"), strict=True)
    )
    return [*lines, "", f"             {legend}", f"             {below}  ?? within noise"]


def _mark(value: float, up: str, down: str) -> str:
    if value != value:
        return "?"
    if value < -0.1:
        return down[sum(value < -level for level in (0.3, 0.6))]
    return up[sum(value > level for level in (0.1, 0.3, 0.6, 0.9))]


def _draw(result: Interdependence, title: str, path: Path) -> None:
    """Changes of the loss on the left, cosines of gradients on the right."""
    figure = chart.blank(12.0, 5.2)
    figure.suptitle(title, fontsize=11)
    left, right = figure.subplots(1, 2)
    _draw_changes(figure, left, result.transfer)
    _draw_cosines(figure, right, result.alignments)
    chart.write(figure, path)


def _draw_changes(figure: Any, axes: Any, transfer: Transfer) -> None:
    """Rows are ranges, columns bands."""
    from matplotlib.colors import SymLogNorm

    relative = [
        [100 * value / before for value, before in zip(row, transfer.before, strict=True)]
        for row in transfer.change
    ]
    most = max(abs(value) for row in relative for value in row) or 1.0
    rows = list(range(len(relative) + 1))
    # Linear up to a tenth of the largest change, then logarithmic: trained and untrained bands both show.
    norm = SymLogNorm(linthresh=most / 10, vmin=-most, vmax=most)
    mesh = axes.pcolormesh(transfer.borders, rows, relative, cmap=_COLOURS, norm=norm)
    _hatch(axes, transfer)
    for row, (low, high) in enumerate(transfer.ranges):
        axes.plot([low, high, high, low, low], [row, row, row + 1, row + 1, row], color="black", lw=1.2)
    names = [*(f"{low:.3g} to {high:.3g}" for low, high in transfer.ranges[:-1]), "all of time"]
    axes.set_yticks([row + 0.5 for row in rows[:-1]], names)
    axes.invert_yaxis()
    axes.set_ylabel("trained on (outlined)")
    axes.set_xlabel(chart.TIME_AXIS)
    axes.set_title(f"held-out loss after {transfer.steps} steps; hatched: within noise", fontsize=10)
    figure.colorbar(mesh, ax=axes, label="change in % of before")


def _hatch(axes: Any, transfer: Transfer) -> None:
    """Hatch the cells whose interval contains 0."""
    for row, (change, margin) in enumerate(zip(transfer.change, transfer.margin, strict=True)):
        for column, (value, around) in enumerate(zip(change, margin, strict=True)):
            if abs(value) <= around:
                ends = transfer.borders[column : column + 2]
                axes.fill_between(ends, row, row + 1, facecolor="none", edgecolor="0.4", hatch="////", lw=0)


def _draw_cosines(figure: Any, axes: Any, alignments: Alignments) -> None:
    metric = "Adam's" if alignments.metric == "adam" else "plain"
    borders, colours = alignments.borders, _COLOURS.removesuffix("_r")
    # Blue is good in both panels: aligned gradients lower each other's loss.
    mesh = axes.pcolormesh(borders, borders, alignments.cosine, cmap=colours, vmin=-1, vmax=1)
    axes.set_facecolor("0.85")
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set_xlabel(chart.TIME_AXIS)
    axes.set_title(f"cosines of mean gradients ({metric} metric); grey: within noise", fontsize=10)
    figure.colorbar(mesh, ax=axes, label="cosine")

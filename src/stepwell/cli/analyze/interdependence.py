"""`stepwell analyze interdependence`: what training on one part of time does to the others."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.analyze import figure
from stepwell.cli.analyze.run_or_workload import add_arguments, count, subject
from stepwell.cli.options import require_extra
from stepwell.core.errors import StepwellError
from stepwell.runs.io import finite

if TYPE_CHECKING:
    from stepwell.analyze.interdependence import Alignments, Interdependence, Losses, Transfer
    from stepwell.cli.analyze.run_or_workload import Moment

_EXAMPLES = """examples:
  stepwell analyze interdependence runs/fashion16-uniform-0 --save interdependence.png
  stepwell analyze interdependence runs/fashion16-uniform-0 --range 0,0.2 --steps 200
  stepwell analyze interdependence fashion16 model=micro steps=500 --ranges 10

A copy goes on training on each range of time alone; nothing is written, and a run stays as it is.
"""
_COLUMNS = 10
"""Bands that a line of text has room for."""
_SHADES = (" ░▒▓█", "-=≡")
_ASCII = (" .:+#", "-=%")
"""Marks of positive cosines to 0.1, 0.3, 0.6, 0.9 and above, and of negative ones to 0.3, 0.6 and below."""


def register(subjects: Any) -> None:
    """Add the subject to the command line."""
    parser = subjects.add_parser(
        "interdependence",
        help="what training on one part of time does to the others (the paper's Fig. 4)",
        description="Train a copy on one range of time only and measure the held-out loss in every band; "
        "and compare the directions of the gradients of all strata.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument("--ranges", type=int, default=5, metavar="N", help="equal parts of time to train on")
    parser.add_argument("--range", action="append", metavar="LOW,HIGH", help="train on this part of time")
    parser.add_argument("--steps", type=int, default=50, help="of training on each range")
    parser.add_argument("--repeats", type=int, default=3, help="at least 3: they make the intervals")
    parser.add_argument("--bands", type=int, help="parts of time that losses are told for")
    parser.add_argument("--metric", choices=("adam", "plain"), default="adam", help="of gradients")
    parser.add_argument("--strata", type=int, default=20, help="parts of time that gradients are told for")
    parser.add_argument("--rounds", type=int, default=5, help="of gradients, at least 3")
    parser.add_argument("--images", type=int, default=16, help="in each of a stratum's two halves")
    figure.add_save(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load or train, go on with each range, compare gradients, print."""
    require_extra()
    figure.check(options.save)
    from stepwell.analyze.estimates import Effort, watch
    from stepwell.analyze.interdependence import Continuation, Interdependence, alignments_of, transfer

    plan = Continuation(_ranges(options), options.steps, options.repeats)
    effort = Effort(options.strata, options.rounds, options.images)
    moment = subject(options)
    watched, examples = watch(moment.training, moment.made.data.train, effort)
    aligned = alignments_of(watched, examples, effort, options.metric, count)
    losses = _held_out(moment, options.bands)
    found = Interdependence(transfer(moment.training, moment.steps, losses, plan, count), aligned)
    title = f"{options.what}: {moment.made.recipe.method} on {moment.made.recipe.process}"
    title += f", after {moment.steps} steps"
    if options.save is not None:
        from stepwell.cli.analyze.figure import draw

        draw(found, title, options.save)
    if options.json:
        print(json.dumps(finite({"steps": moment.steps, **found.plain()})))
        return
    print(f"{title}\n\n{_report(found)}")
    if options.save is not None:
        print(f"\nSaved {options.save}")


def _ranges(options: argparse.Namespace) -> tuple[tuple[float, float], ...]:
    if not options.range:
        if options.ranges < 1:
            raise StepwellError(f"--ranges {options.ranges}: give at least 1 part of time.")
        return tuple((k / options.ranges, (k + 1) / options.ranges) for k in range(options.ranges))
    found = []
    for given in options.range:
        try:
            low, high = (float(word) for word in given.split(","))
        except ValueError:
            raise StepwellError(f"--range {given}: write LOW,HIGH in unit time, as in 0,0.2.") from None
        found.append((low, high))
    return tuple(found)


def _held_out(moment: Moment, bands: int | None) -> Losses:
    """The held-out losses of the recipe, in as many bands as asked for."""
    from stepwell.recipes.training import evaluation_of

    made = moment.made
    if bands is not None:
        made = replace(made, plan=made.plan.with_settings(bands=bands))
    evaluate = evaluation_of(made, moment.training.accelerator.device)

    def losses(network: Any) -> Sequence[float]:
        found: list[float] = evaluate(network)["bands"]
        return found

    return losses


def _report(found: Interdependence) -> str:
    lines = [
        f"Held-out loss after {found.transfer.steps} more steps on one part of time, change in % of before:",
        "",
        *_changes(found.transfer),
        "",
        _counted(found.transfer),
        "",
        *_shaded(found.alignments, chart.can_draw_blocks(sys.stdout)),
    ]
    return "\n".join(lines)


def _changes(found: Transfer) -> list[str]:
    """A line for each range, with neighbouring bands together where there are too many."""
    bands = len(found.before)
    groups = [slice(k * bands // _COLUMNS, (k + 1) * bands // _COLUMNS) for k in range(_COLUMNS)]
    groups = groups if bands > _COLUMNS else [slice(k, k + 1) for k in range(bands)]
    lines = [
        f"{'trained on':>12}" + "".join(f"{f'{found.borders[group.start]:.2f}-':>7}" for group in groups)
    ]
    for (low, high), row in zip(found.ranges, found.change, strict=True):
        cells = [100 * sum(row[group]) / sum(found.before[group]) for group in groups]
        lines.append(f"{f'{low:.2f}-{high:.2f}':>12}" + "".join(f"{cell:>+7.1f}" for cell in cells))
    return lines


def _counted(found: Transfer) -> str:
    """How many bands outside of what was trained on rose and fell, beyond their intervals."""
    rose = fell = outside = 0
    for (low, high), change, margin in zip(found.ranges, found.change, found.margin, strict=True):
        for start, end, value, around in zip(found.borders, found.borders[1:], change, margin, strict=False):
            if end <= low or start >= high:
                outside += 1
                rose, fell = rose + (value > around), fell + (value < -around)
    return (
        f"Outside of what was trained on, the loss rose in {rose} and fell in {fell} of {outside} cells;\n"
        f"in {outside - rose - fell} it cannot be told (95 % intervals over repeats).\n"
        "The last row had all of time for as many steps: what it shows too is not interdependence."
    )


def _shaded(found: Alignments, fancy: bool) -> list[str]:
    """The cosines as characters, two for each stratum."""
    metric = "Adam's" if found.metric == "adam" else "the plain"
    up, down = _SHADES if fancy else _ASCII
    lines = [f"Cosines of the strata's mean gradients, in {metric} metric, which tell of small steps:", ""]
    for low, row in zip(found.borders, found.cosine, strict=False):
        lines.append(f"{low:>11.2f}- " + "".join(2 * _mark(value, up, down) for value in row))
    levels = "0.1", "0.3", "0.6", "0.9", "1"
    legend = "  ".join(f"{2 * mark} to {level}" for mark, level in zip(up[1:], levels[1:], strict=True))
    below = "  ".join(
        f"{2 * mark} to -{level}" for mark, level in zip(down, ("0.3", "0.6", "1"), strict=True)
    )
    return [*lines, "", f"             {legend}", f"             {below}  ?? not told from noise"]


def _mark(value: float, up: str, down: str) -> str:
    if value != value:
        return "?"
    if value < -0.1:
        return down[sum(value < -level for level in (0.3, 0.6))]
    return up[sum(value > level for level in (0.1, 0.3, 0.6, 0.9))]

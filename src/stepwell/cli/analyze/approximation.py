"""`stepwell analyze approximation`: how well a few timesteps stand for all (Kim et al. 2025, Algorithm 2)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.analyze.run_or_workload import add_arguments, moments, plan_of
from stepwell.cli.columns import table
from stepwell.cli.options import SPEC, add_command, add_save, begin, output, whole
from stepwell.cli.progress import measuring
from stepwell.compare.report import COLOURS
from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.analyze.approximation import Approximation, Fit
    from stepwell.core.estimates import Estimate

_EXAMPLES = """examples:
  stepwell analyze approximation runs/fashion16-uniform-0
  stepwell analyze approximation fashion16 model=micro --grid 100 --save approximation.png
  stepwell analyze approximation runs/fashion16-uniform-0 --target min-snr --json

Training continues in memory for as many updates as are measured; nothing is written. Timesteps are
chosen on one part of the updates (--queue) and scored on later ones, several times.
"""
_SHOWN = (1, 2, 3, 5, 10, 15, 20)
"""Sizes in the printed tables; --json and --save have all."""
_PAPERS = 3
"""Kim et al.'s |S|."""
_SELECTIONS = {
    "f": "largest F statistics (the paper)",
    "forward": "greedy regression",
    "random": "random",
    "grid": "evenly spaced",
    "variance": "largest variance, whatever the sum does (a control)",
}
_MEASURES: dict[str, Callable[[Fit], Estimate | None]] = {
    "correlation of the mean over S with the total decrease": lambda fit: fit.correlation,
    "R^2 of a regression on S, fitted on the queue": lambda fit: fit.fitted_r2,
    "share of updates with the same sign": lambda fit: fit.same_sign,
}


def register(analyses: Any) -> None:
    """Add the analysis to the command line."""
    parser = add_command(
        analyses,
        "approximation",
        run,
        help="how well the few timesteps of the paper's Algorithm 2 stand for all",
        description="Measure how updates change the loss at all timesteps, and how well a few predict it.",
        examples=_EXAMPLES,
    )
    add_arguments(parser)
    parser.add_argument("--target", default="vlb", metavar=SPEC, help="the weighting of the losses (vlb)")
    parser.add_argument(
        "--grid",
        type=whole(100_000),
        help="measure so many evenly spaced timesteps (default: all; fewer are an easier problem)",
    )
    parser.add_argument(
        "--queue", type=whole(100_000), default=20, help="updates to choose on, the paper's |Q| (20)"
    )
    parser.add_argument(
        "--scored", type=whole(100_000), default=20, help="later updates to score each choice on (20)"
    )
    parser.add_argument(
        "--repeats", type=whole(1000), default=5, help="repeats for the intervals, at least 3 (5)"
    )
    parser.add_argument("--largest", type=whole(100_000), default=20, help="the largest |S| (20)")
    add_save(parser)


def run(options: argparse.Namespace) -> None:
    """Load or train, continue training while measuring, print."""
    begin(f"approximation on {options.what}")
    chart.check_save(options.save)
    from stepwell.analyze.approximation import Measured, Split, approximation, decreases, require_target

    split = Split(options.queue, options.scored, options.repeats)
    process = plan_of(options.what, options.settings).process
    require_target(process, options.target)
    measured = Measured(options.target, options.grid)
    times = measured.grid(process)
    if not 1 <= options.largest <= len(times):
        raise StepwellError(f"--largest {options.largest}: there are {len(times)} timesteps to choose from.")
    moment = None
    for moment in moments(options, ()):  # noqa: B007
        pass
    if moment is None:
        raise StepwellError(f"{options.what} has no checkpoint that can be read.")
    experiment, training, steps = moment
    started, title = time.monotonic(), moment.title(options.what)
    rows = decreases(training, experiment.data.train, range(steps, steps + split.rows), measured, measuring)
    result = approximation(rows, rows.sum(1), times, split, options.largest, options.target)
    text = (
        f"{title}, after {steps} steps\n"
        f"{split.rows} updates at {len(times)} timesteps each, {time.monotonic() - started:.0f} s\n\n"
        f"{_report(result)}"
    )
    output(options, {**asdict(result), "steps": steps}, text, lambda path: _draw(result, title, path))


def _report(result: Approximation) -> str:
    split = result.split
    lines = [
        f"{100 * result.helped:.0f} % of the updates lowered {result.target} of the measured image.",
        f"S was chosen on {split.queue} updates and scored on the next {split.scored}, "
        f"{split.repeats} times.",
    ]
    for title, measure in _MEASURES.items():
        rows = [["|S|", *_SELECTIONS]]
        for size in (size for size in _SHOWN if size in result.sizes):
            rows.append(
                [str(size), *(_range(measure(result.of(selection, size))) for selection in _SELECTIONS)]
            )
        lines += ["", title, *table(rows, right=True)]
    lines += ["", *(f"  {name:8} {meaning}" for name, meaning in _SELECTIONS.items()), ""]
    size = min(_PAPERS, max(result.sizes))
    correlations = {name: _range(result.of(name, size).correlation) for name in _SELECTIONS}
    times = "; ".join(" ".join(f"{u:.3f}" for u in repeat) for repeat in result.of("f", size).chosen)
    lines += [
        f"With |S| = {size} the mean over S correlates with the total decrease by {correlations['f']}",
        f"for the paper's choice, by {correlations['grid']} evenly spaced, and by {correlations['variance']}",
        f"where the decrease varies most. The paper's choices, in unit time: {times}.",
    ]
    return "\n".join(lines)


def _range(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def _draw(result: Approximation, title: str, path: Path) -> None:
    """One panel per measure, over |S|; bands are 95 % intervals."""
    figure, panels = chart.panels(3, 4.5, 4.2)
    figure.suptitle(f"{title}, target {result.target}", fontsize=11)
    for axes, (name, measure) in zip(panels, _MEASURES.items(), strict=True):
        for selection, colour in zip(_SELECTIONS, COLOURS, strict=False):
            every = [(size, measure(result.of(selection, size))) for size in result.sizes]
            known = [(size, each) for size, each in every if each is not None]
            sizes = [size for size, _ in known]
            axes.plot(sizes, [each.value for _, each in known], "o-", ms=3, color=colour, label=selection)
            low, high = [each.low for _, each in known], [each.high for _, each in known]
            axes.fill_between(sizes, low, high, color=colour, alpha=0.12, lw=0)
        # A regression with as many factors as rows is far below any scale that shows the rest.
        axes.set_ylim(0.3 if "share" in name else -1 if "R^2" in name else -0.25, 1.02)
        axes.set_xticks([size for size in result.sizes if size in _SHOWN])
        axes.axhline(0.5 if "share" in name else 0, color="0.6", lw=0.8)
        axes.axvline(_PAPERS, color="0.6", lw=0.8, ls=":")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("|S| (dotted: the paper's)")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    chart.write(figure, path)

"""`stepwell analyze approximation`: how well a few timesteps stand for all (Kim et al. 2025, Fig. 7)."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.analyze import figure
from stepwell.cli.analyze.run_or_workload import add_arguments, count, moments, plan_of
from stepwell.cli.options import require_extra
from stepwell.core.errors import StepwellError
from stepwell.runs.io import finite

if TYPE_CHECKING:
    from stepwell.analyze.approximation import Approximation, Fit
    from stepwell.analyze.estimates import Estimate

_EXAMPLES = """examples:
  stepwell analyze approximation runs/fashion16-uniform-0
  stepwell analyze approximation fashion16 model=micro --grid 100 --save approximation.png
  stepwell analyze approximation runs/fashion16-uniform-0 --target min-snr --json

Training goes on in memory for as many updates as are measured; nothing is written. Timesteps are
chosen on one part of the updates (--queue) and scored on later ones, several times.
"""
_TOLD = (1, 2, 3, 5, 10, 15, 20)
"""Sizes in the printed tables: --json and --save have all."""
_PAPERS = 3
"""Kim et al.'s |S|."""
_WORDS = {
    "f": "largest F statistics (the paper)",
    "forward": "greedy regression",
    "random": "any",
    "grid": "evenly spaced",
    "loudest": "largest spread, whatever the sum does: a control",
}
_MEASURES: dict[str, Callable[[Fit], Estimate | None]] = {
    "correlation of the mean over S with the whole decrease": lambda fit: fit.correlation,
    "R^2 of a regression on S, fitted on the queue": lambda fit: fit.fitted_r2,
    "share of updates with the same sign": lambda fit: fit.same_sign,
}


def register(subjects: Any) -> None:
    """Add the subject to the command line."""
    parser = subjects.add_parser(
        "approximation",
        help="how well a few timesteps stand for all",
        description="Measure what updates do to the loss at all timesteps, and how much of it a few tell.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument(
        "--target", default="vlb", metavar="NAME[:key=value,...]", help="the weighting of the losses"
    )
    parser.add_argument(
        "--grid",
        type=int,
        help="measure so many evenly spaced timesteps (default: all; fewer ask an easier question)",
    )
    parser.add_argument("--queue", type=int, default=20, help="updates that choose; the paper's |Q|")
    parser.add_argument("--scored", type=int, default=20, help="later updates that score each choice")
    parser.add_argument("--repeats", type=int, default=5, help="at least 3: they make the intervals")
    parser.add_argument("--largest", type=int, default=20, help="the largest |S|")
    figure.add_save(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load or train, go on training, measure, print."""
    require_extra()
    figure.check(options.save)
    from stepwell.analyze.approximation import Measured, Split, approximation, decreases, require_target

    split = Split(options.queue, options.scored, options.repeats)
    process = plan_of(options.what, options.settings).process
    require_target(process, options.target)
    measured = Measured(options.target, options.grid)
    times = measured.grid(process)
    if not 1 <= options.largest <= len(times):
        raise StepwellError(f"--largest {options.largest}: there are {len(times)} timesteps to choose from.")
    made = training = None
    steps = 0
    for made, training, steps in moments(options, ()):  # noqa: B007
        pass
    if made is None or training is None:
        raise StepwellError(f"{options.what} has no checkpoint that can be read.")
    started = time.monotonic()
    rows = decreases(training, made.data.train, range(steps, steps + split.rows), measured, count)
    found = approximation(rows, rows.sum(1), times, split, options.largest, options.target)
    if options.save is not None:
        _draw(found, f"{options.what}: {made.recipe.method} on {made.recipe.process}", options.save)
    if options.json:
        print(json.dumps(finite({**found.plain(), "steps": steps})))
        return
    print(f"{options.what}: {made.recipe.method} on {made.recipe.process}, after {steps} steps")
    print(f"{split.rows} updates at {len(times)} timesteps each, {time.monotonic() - started:.0f} s\n")
    print(_report(found))
    if options.save is not None:
        print(f"\nSaved {options.save}")


def _report(found: Approximation) -> str:
    sizes = [size for size in _TOLD if size in found.sizes]
    lines = [
        f"{100 * found.helped:.0f} % of the updates lowered {found.target} of the image that was measured.",
        f"S was chosen on {found.split.queue} updates and scored on the {found.split.scored} after them, "
        f"{found.split.repeats} times.",
    ]
    for title, measure in _MEASURES.items():
        lines += ["", title, _cells("|S|", *_WORDS)]
        for size in sizes:
            cells = [_range(measure(found.of(selection, size))) for selection in _WORDS]
            lines += [_cells(str(size), *cells)]
    lines += ["", *(f"  {name:8} {words}" for name, words in _WORDS.items()), ""]
    size = min(_PAPERS, max(found.sizes))
    told = {name: _range(found.of(name, size).correlation) for name in ("f", "grid", "loudest")}
    places = "; ".join(" ".join(f"{u:.3f}" for u in repeat) for repeat in found.of("f", size).chosen)
    lines += [
        f"With |S| = {size} the mean over S correlates with the whole decrease by {told['f']} as the paper",
        f"chooses it, by {told['grid']} evenly spaced, which looks at nothing, and by {told['loudest']}",
        f"where the decrease varies most. The paper's choices, in unit time: {places}.",
    ]
    return "\n".join(lines)


def _cells(first: str, *cells: str) -> str:
    return f"{first:>4}" + "".join(f"{cell:>24}" for cell in cells)


def _range(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _draw(found: Approximation, title: str, path: Path) -> None:
    """One panel a measure, over |S|; bands are 95 % intervals."""
    from stepwell.compare.views import COLOURS

    picture = figure.blank(13.5, 4.2)
    picture.suptitle(f"{title}, target {found.target}", fontsize=11)
    for axes, (name, measure) in zip(picture.subplots(1, 3), _MEASURES.items(), strict=True):
        for selection, colour in zip(_WORDS, COLOURS, strict=False):
            told = [(size, measure(found.of(selection, size))) for size in found.sizes]
            known = [(size, each) for size, each in told if each is not None]
            sizes = [size for size, _ in known]
            axes.plot(sizes, [each.value for _, each in known], "o-", ms=3, color=colour, label=selection)
            low, high = [each.low for _, each in known], [each.high for _, each in known]
            axes.fill_between(sizes, low, high, color=colour, alpha=0.12, lw=0)
        # A regression with as many factors as rows goes far below any scale that shows the rest.
        axes.set_ylim(0.3 if "share" in name else -1 if "R^2" in name else -0.25, 1.02)
        axes.set_xticks([size for size in found.sizes if size in _TOLD])
        axes.axhline(0.5 if "share" in name else 0, color="0.6", lw=0.8)
        axes.axvline(_PAPERS, color="0.6", lw=0.8, ls=":")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("|S| (dotted: the paper's)")
        axes.spines[["top", "right"]].set_visible(False)
    picture.axes[0].legend(frameon=False, fontsize=8)
    figure.write(picture, path)

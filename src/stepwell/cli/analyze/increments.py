"""`stepwell analyze increments`: how much each step of a process changes, and SpeeD's three areas."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.analyze import figure
from stepwell.runs.io import finite

if TYPE_CHECKING:
    from stepwell.analyze.increments import ProcessIncrements

_EXAMPLES = """examples:
  stepwell analyze increments linear cosine quadratic --save increments.png
  stepwell analyze increments linear:timesteps=4000 flow:shift=3 edm --json

The increment x_{t+1} - x_t of two noisy images of one x0 has the variance 2 - abar_t (1 + alpha_{t+1})
(Wang et al. 2024, Theorem 1). It rises ever faster (acceleration), then ever more slowly (deceleration),
then hardly at all (convergence): there SpeeD draws less often.
"""
_COLOURS = ("#0072B2", "#E69F00", "#999999")
"""Of the areas: acceleration, deceleration, convergence."""
_NEVER = 0.99
"""A border after this leaves no convergence area to speak of."""
_TAU = 700


def register(subjects: Any) -> None:
    """Add the subject to the command line."""
    parser = subjects.add_parser(
        "increments",
        help="how much each step of a process changes: SpeeD's areas",
        description="Show the increments of processes and their three areas.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="+", metavar="PROCESS", help="NAME or NAME:key=value,...")
    parser.add_argument(
        "--converged",
        type=float,
        default=0.99,
        help="the share of the final variance that counts as converged",
    )
    parser.add_argument("--json", action="store_true", help="the numbers, for programs")
    figure.add_save(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Compute, print."""
    figure.check(options.save)
    from stepwell.analyze.increments import process_increments
    from stepwell.catalogue import build

    found = [process_increments(what, build.as_process(what), options.converged) for what in options.what]
    if options.save is not None:
        _draw(found, options.save)
    if options.json:
        print(json.dumps(finite([each.plain() for each in found])))
        return
    for each in found:
        print(_report(each, fancy=chart.can_draw_blocks(sys.stdout)))
    if options.save is not None:
        print(f"Saved {options.save}")


def _report(found: ProcessIncrements, fancy: bool) -> str:
    last = chart.last_time(found.timesteps)
    borders = [0.0, *found.u[1:], 1.0]
    areas = {
        "acceleration": (0.0, found.accelerates_until),
        "deceleration": (found.accelerates_until, found.converges_from),
        "convergence": (found.converges_from, 1.0),
    }
    lines = [found.process, chart.bars("variance of an increment", found.variance, borders, last, fancy), ""]
    for name, (low, high) in areas.items():
        lines += [f"  {name:14} {low:.3f} to {high:.3f} of unit time{_steps(found, low, high)}"]
    lines += [_official(found), ""]
    return "\n".join(lines)


def _steps(found: ProcessIncrements, low: float, high: float) -> str:
    first, end = found.timestep(low), found.timestep(high)
    if first is None or end is None:
        return ""
    return f", timesteps {first} to {end - 1}" if end > first else ", no timestep"


def _official(found: ProcessIncrements) -> str:
    """What SpeeD would do with it, and what its code does."""
    lines = []
    if found.converges_from > _NEVER:
        lines += ["  It never converges: there is nothing that SpeeD could draw less often."]
    if found.timesteps is None:
        told = " and ".join(f"{time:.4g}" for time in found.own_times)
        return "\n".join(
            [*lines, f"  At the borders the network is told {told}; SpeeD's code has timesteps only."]
        )
    flat = f"and pairs timesteps about {found.official_first_flat}"
    missing = "" if found.official_converges_from is not None else ", which is not here"
    return "\n".join([*lines, f"  SpeeD's code begins convergence at timestep {_TAU}{missing}, {flat}."])


def _draw(found: Sequence[ProcessIncrements], path: Path) -> None:
    """One panel a process: the variance over its areas, and SpeeD's own border."""
    columns = min(len(found), 3)
    rows = -(-len(found) // columns)
    picture = figure.blank(4.2 * columns, 3.3 * rows)
    grid = picture.subplots(rows, columns, squeeze=False)
    panels = [axes for row in grid for axes in row]
    for unused in panels[len(found) :]:
        unused.set_visible(False)
    for axes, each in zip(panels, found, strict=False):
        ends = (0.0, each.accelerates_until, each.converges_from, 1.0)
        names = ("acceleration", "deceleration", "convergence")
        for name, low, high, colour in zip(names, ends, ends[1:], _COLOURS, strict=False):
            axes.axvspan(low, high, color=colour, alpha=0.18, lw=0, label=name)
        axes.plot(each.u, each.variance, color="black", lw=1.6)
        if each.official_converges_from is not None and each.timesteps is not None:
            border = each.official_converges_from / each.timesteps
            axes.axvline(border, color="#D55E00", ls="--", lw=1.4, label="SpeeD's code: t = 700")
        axes.set_title(each.process, fontsize=10)
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("unit time u: 0 is data, 1 is noise")
        axes.set_ylabel("variance of an increment")
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.write(picture, path)

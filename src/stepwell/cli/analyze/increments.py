"""`stepwell analyze increments`: how much each step of a process changes, and SpeeD's three areas."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.options import add_command, add_json, add_save, number, output

if TYPE_CHECKING:
    from stepwell.analyze.increments import ProcessIncrements

_EXAMPLES = """examples:
  stepwell analyze increments linear cosine quadratic --save increments.png
  stepwell analyze increments linear:timesteps=4000 flow:shift=3 edm --json

The increment x_{t+1} - x_t of two noisy images of one x0 has the variance 2 - abar_t (1 + alpha_{t+1})
(Wang et al. 2024, Theorem 1); images of flow, EDM and VE are scaled to unit variance first. Its growth
speeds up (acceleration), slows down (deceleration) and nearly stops (convergence): there SpeeD draws less.
"""
_COLOURS = {"acceleration": "#0072B2", "deceleration": "#E69F00", "convergence": "#999999"}
_NEVER = 0.99
"""A convergence area that starts after this is negligible."""
_TAU = 700


def register(analyses: Any) -> None:
    """Add the analysis to the command line."""
    parser = add_command(
        analyses,
        "increments",
        run,
        help="how much each step of a process changes an image: SpeeD's areas",
        description="Show the increments of processes and SpeeD's three areas of time.",
        examples=_EXAMPLES,
    )
    parser.add_argument("what", nargs="+", metavar="PROCESS", help="NAME or NAME:key=value,...")
    parser.add_argument(
        "--converged",
        type=number,
        default=0.99,
        help="the share of the final variance that counts as converged",
    )
    add_json(parser)
    add_save(parser)


def run(options: argparse.Namespace) -> None:
    """Compute, print."""
    chart.check_save(options.save)
    from stepwell.analyze.increments import process_increments
    from stepwell.catalogue import build

    results = [process_increments(what, build.as_process(what), options.converged) for what in options.what]
    text = "\n".join(map(_report, results))
    output(options, [asdict(each) for each in results], text, lambda path: _draw(results, path))


def _areas(result: ProcessIncrements) -> dict[str, tuple[float, float]]:
    return {
        "acceleration": (0.0, result.accelerates_until),
        "deceleration": (result.accelerates_until, result.converges_from),
        "convergence": (result.converges_from, 1.0),
    }


def _report(result: ProcessIncrements) -> str:
    last = chart.last_time(result.timesteps)
    borders = [0.0, *result.u[1:], 1.0]
    lines = [result.process, chart.bars("variance of an increment", result.variance, borders, last), ""]
    for name, (low, high) in _areas(result).items():
        lines += [f"  {name:14} {low:.3f} to {high:.3f} of unit time{_steps(result, low, high)}"]
    lines += [*_official(result), ""]
    return "\n".join(lines)


def _steps(result: ProcessIncrements, low: float, high: float) -> str:
    first, end = result.timestep(low), result.timestep(high)
    if first is None or end is None:
        return ""
    return f", timesteps {first} to {end - 1}" if end > first else ", no timestep"


def _official(result: ProcessIncrements) -> list[str]:
    """What SpeeD would do with this process, and what its code does."""
    lines = []
    if result.converges_from > _NEVER:
        lines += ["  It never converges: there is nothing that SpeeD could draw less often."]
    if result.timesteps is None:
        times = " and ".join(f"{time:.4g}" for time in result.own_times)
        return [*lines, f"  The network's time at the borders is {times}; SpeeD's code has timesteps only."]
    missing = "" if result.official_converges_from is not None else ", which does not exist here"
    return [
        *lines,
        f"  SpeeD's code begins convergence at timestep {_TAU}{missing}, and pairs timesteps about "
        f"{result.official_first_flat}.",
    ]


def _draw(results: Sequence[ProcessIncrements], path: Path) -> None:
    """One panel per process: the variance over its areas, and the border in SpeeD's code."""
    figure, panels = chart.panels(len(results), 4.2, 3.3)
    for axes, each in zip(panels, results, strict=True):
        for name, (low, high) in _areas(each).items():
            axes.axvspan(low, high, color=_COLOURS[name], alpha=0.18, lw=0, label=name)
        axes.plot(each.u, each.variance, color="black", lw=1.6)
        if each.official_converges_from is not None and each.timesteps is not None:
            border = each.official_converges_from / each.timesteps
            axes.axvline(border, color="#D55E00", ls="--", lw=1.4, label="SpeeD's code: t = 700")
        chart.time_axes(axes)
        axes.set_title(each.process, fontsize=10)
        axes.set_xlabel(chart.TIME_AXIS)
        axes.set_ylabel("variance of an increment")
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    chart.write(figure, path)

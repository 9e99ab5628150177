"""`stepwell analyze gain`: how much a better choice of timesteps could save."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.analyze.run_or_workload import add_arguments, count, subject
from stepwell.cli.options import require_extra
from stepwell.runs.io import finite

if TYPE_CHECKING:
    from stepwell.analyze.estimates import Estimate
    from stepwell.analyze.gain import Gain
    from stepwell.train.step import Training

_EXAMPLES = """examples:
  stepwell analyze gain runs/fashion16-uniform-0
  stepwell analyze gain runs/fashion16-uniform-0 --weighting min-snr
  stepwell analyze gain fashion16 data=my/photos model=small steps=500

A workload is trained for a short while first (steps=200), and nothing is written.
"""


def register(subjects: Any) -> None:
    """Add the subject to the command line."""
    parser = subjects.add_parser(
        "gain",
        help="how much a better choice of timesteps could save",
        description="Measure how the gradient's noise is spread over time, and predict what drawing "
        "timesteps in proportion to it (method=neyman) would save.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument(
        "-w", "--weighting", metavar="NAME[:key=value,...]", help="another objective than its own"
    )
    parser.add_argument("--strata", type=int, default=20, help="parts of time")
    parser.add_argument("--rounds", type=int, default=5, help="at least 3: they make the intervals")
    parser.add_argument("--images", type=int, default=16, help="in each of a stratum's two halves")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load or train, measure, print."""
    require_extra()
    from stepwell.analyze.estimates import Effort
    from stepwell.analyze.gain import gain
    from stepwell.catalogue import build

    effort = Effort(options.strata, options.rounds, options.images)
    weighting = None if options.weighting is None else build.weighting(options.weighting)
    made, training, steps = subject(options)
    recipe, started = made.recipe, time.monotonic()
    batch = recipe.batch * recipe.accumulate
    found = gain(training, made.data.train, batch, effort, weighting, count)
    if options.json:
        print(json.dumps(finite({**found.plain(), "steps": steps})))
        return
    objective = options.weighting or _written(recipe.method)
    print(f"{options.what}: {recipe.method} on {recipe.process}, after {steps} steps; objective {objective}")
    gradients = effort.rounds * effort.strata * 2 * effort.images
    metric = "Adam's metric" if found.metric == "adam" else "the plain metric"
    print(f"{gradients:,} gradients in {metric}, {time.monotonic() - started:.0f} s\n")
    if _trains_on_another_density(training):
        print(f"Note: {recipe.method} draws unevenly without correction, which is part of what it trains on.")
        print("The figures are for the process's own density.\n")
    print(_report(found, chart.last_time(made.process.timesteps)))
    print(_next(options, found, objective))


def _trains_on_another_density(training: Training) -> bool:
    """Whether its draws, uncorrected, are not those that the objective is stated against."""
    sampler, process = training.pacer.sampler, training.objective.process
    if sampler.reference is not None:
        return False
    u = process.grid()
    return sampler.learns or not bool((sampler.density(u) - process.reference.pdf(u)).abs().max() < 1e-6)


def _report(found: Gain, last: str) -> str:
    fancy = chart.can_draw_blocks(sys.stdout)
    rows = {
        "variance, drawn in proportion": (found.ratio, "of uniform's"),
        f"with neyman's floor of {found.floor:g}": (found.ratio_floored, "of uniform's"),
        "noise between strata": (found.between_share, "of all; stratified draws have none"),
        "critical batch": (found.critical_batch, "where noise and signal are equal"),
        f"noise at batch {found.batch}": (found.noise_share, "of an update's square"),
        "images for the same loss": (found.images_ratio, "of uniform's, estimated"),
    }
    title = "spread of one example's gradient (mean = 1)"
    lines = [chart.bars(title, found.spread, found.borders, last, fancy), ""]
    lines += [f"  {name:32} {_range(estimate)} {meaning}" for name, (estimate, meaning) in rows.items()]
    ratio, images, noise = found.ratio, found.images_ratio, found.noise_share.value
    lines += [
        "",
        "Drawing in proportion to the gradient's spread would cut its variance to "
        f"{ratio.value:.2f} of uniform's ({ratio.low:.2f} to {ratio.high:.2f}).",
        f"At batch {found.batch} noise is {100 * noise:.0f} % of an update: expect about {images.value:.2f}x "
        f"the images ({images.low:.2f} to {images.high:.2f}),",
        f"and at best {1 / ratio.value:.1f}x the speed, if all were noise. An estimate for the model as it",
        "is now, and moves as training goes on. What was measured on fashion16: benchmarks/RESULTS.md.",
    ]
    return "\n".join(lines)


def _next(options: argparse.Namespace, found: Gain, objective: str) -> str:
    method = "neyman" if objective == "none" else f"neyman+{objective}"
    if found.images_ratio.low > 0.95:
        return "Next: keep what you have. Noise is not what holds this training up at this batch size."
    if Path(options.what).is_dir():
        return f"Next: the command that trained it, with method={method} and another out="
    kept = [word for word in options.settings if word.partition("=")[0] not in ("method", "steps", "out")]
    return f"Next: stepwell train {' '.join([options.what, *kept])} method={method}"


def _written(method: str) -> str:
    """The weighting of a method, as --weighting takes it."""
    from stepwell.recipes.method import parse_method

    return str(parse_method(method).weighting)


def _range(estimate: Estimate) -> str:
    return f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"

"""`stepwell analyze gain`: how much a better choice of timesteps could save."""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.analyze.run_or_workload import add_arguments, add_effort, effort_of, last_moment
from stepwell.cli.columns import labelled
from stepwell.cli.options import SPEC, add_command, begin, output
from stepwell.cli.progress import measuring
from stepwell.runs.metrics import loss

if TYPE_CHECKING:
    from stepwell.analyze.gain import Gain
    from stepwell.train.step import Training

_EXAMPLES = """examples:
  stepwell analyze gain runs/fashion16-uniform-0
  stepwell analyze gain runs/fashion16-uniform-0 --weighting min-snr
  stepwell analyze gain runs/fashion16-uniform-0 --raw
  stepwell analyze gain fashion16 data=my/photos model=small steps=500

A workload is trained for a short while first (steps=200), and nothing is written.
Gradients are of the EMA weights: raw weights are displaced by noise, and most of their gradient only
leads back, so that the critical batch there looks up to ten times too small.
"""


def register(analyses: Any) -> None:
    """Add the analysis to the command line."""
    parser = add_command(
        analyses,
        "gain",
        run,
        help="how much a better choice of timesteps could save",
        description="Measure how the gradient's noise varies over time, and predict what drawing timesteps "
        "in proportion to it (method=neyman) would save.",
        examples=_EXAMPLES,
    )
    add_arguments(parser)
    parser.add_argument("-w", "--weighting", metavar=SPEC, help="measure another objective than its own")
    parser.add_argument("--raw", action="store_true", help="measure at the raw weights instead of EMA")
    add_effort(parser, rounds=5, images=16)


def run(options: argparse.Namespace) -> None:
    """Load or train, measure, print."""
    begin(f"gain of {options.what}")
    from stepwell.analyze.gain import gain
    from stepwell.analyze.gradient_rounds import gradient_rounds
    from stepwell.catalogue import build
    from stepwell.core.density import Uniform

    effort = effort_of(options)
    weighting = None if options.weighting is None else build.fixed_weighting(options.weighting)
    moment = last_moment(options)
    experiment, training, steps = moment
    recipe, started = experiment.recipe, time.monotonic()
    weights = "raw" if options.raw else "averaged"
    with nullcontext() if options.raw else training.ema.in_place():
        rounds = gradient_rounds(training, experiment.data.train, effort, weighting, measuring)
        result = gain(rounds, recipe.batch * recipe.accumulate)
    objective = options.weighting or str(experiment.plan.method.weighting)
    baseline = "uniform's" if isinstance(experiment.process.reference, Uniform) else "the reference's"
    gradients = effort.rounds * effort.strata * 2 * effort.images
    metric = "Adam's metric" if result.metric == "adam" else "the plain metric"
    lines = [
        f"{moment.title(options.what)}, after {steps} steps; {loss(objective).name()}",
        f"{gradients:,} gradients of the {weights} weights in {metric}, {time.monotonic() - started:.0f} s",
        "",
    ]
    if _changes_the_objective(training):
        lines += [
            f"Note: {recipe.method} draws unevenly without correction, which changes its objective.",
            "The numbers are for the process's own density.",
            "",
        ]
    lines += [
        _report(result, chart.last_time(experiment.process.timesteps), baseline),
        _next(options, result, objective),
    ]
    output(options, {**asdict(result), "steps": steps, "weights": weights}, "\n".join(lines))


def _changes_the_objective(training: Training) -> bool:
    """Whether uncorrected draws differ from the process's reference density."""
    sampler, process = training.pacer.sampler, training.objective.process
    if sampler.reference is not None:
        return False
    u = process.grid()
    return sampler.learns or not bool((sampler.density(u) - process.reference.pdf(u)).abs().max() < 1e-6)


def _report(gain: Gain, last: str, baseline: str) -> str:
    rows = {
        "variance, drawn in proportion": (gain.ratio, f"of {baseline}"),
        f"with neyman's floor of {gain.floor:g}": (gain.ratio_floored, f"of {baseline}"),
        "noise between strata": (gain.between_share, "of all; stratified draws have none"),
        "critical batch": (gain.critical_batch, "where noise and signal are equal"),
        f"noise at batch {gain.batch}": (gain.noise_share, "of an update's square"),
        "images for the same loss": (gain.images_ratio, f"of {baseline}, estimated"),
    }
    title = "standard deviation of one example's gradient (mean = 1)"
    lines = [chart.bars(title, gain.spread, gain.borders, last), ""]
    for name, (estimate, meaning) in rows.items():
        lines += [labelled(f"  {name:32} ", f"{estimate.text('.3g')} {meaning}")]
    ratio, images, noise = gain.ratio, gain.images_ratio, gain.noise_share.value
    lines += [
        "",
        "Drawing in proportion to the gradient's standard deviation would cut its variance to "
        f"{ratio.value:.2f} of {baseline} ({ratio.low:.2f} to {ratio.high:.2f}).",
        f"At batch {gain.batch} noise is {100 * noise:.0f} % of an update: expect about {images.value:.2f}x "
        f"the images ({images.low:.2f} to {images.high:.2f}),",
        f"and at best {1 / ratio.value:.1f}x the speed, if all were noise. This is an estimate for the model",
        "as it is now and changes during training. Measurements on fashion16: benchmarks/RESULTS.md.",
    ]
    return "\n".join(lines)


def _next(options: argparse.Namespace, gain: Gain, weighting: str) -> str:
    method = "neyman" if weighting == "none" else f"neyman+{weighting}"
    images = gain.images_ratio
    if images.low > 0.95:
        return (
            f"Next: keep what you have. Nothing to win here: at batch {gain.batch} even such timesteps "
            f"would need {images.text()} of the images."
        )
    if Path(options.what).is_dir():
        return f"Next: the command that trained it, with method={method} and another out="
    kept = [word for word in options.settings if word.partition("=")[0] not in ("method", "steps", "out")]
    return f"Next: stepwell train {' '.join([options.what, *kept])} method={method}"

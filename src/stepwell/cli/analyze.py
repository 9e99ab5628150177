"""`stepwell analyze`: what a short look at a model and its data can tell."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli import chart
from stepwell.cli.extra import require_extra
from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.analyze.gain import Gain
    from stepwell.analyze.jackknife import Estimate
    from stepwell.recipes.build import Experiment
    from stepwell.train.step import Training

SHORT_STEPS = 200
"""Training before a probe of a workload: gradients of fresh weights say little about a run."""

_GAIN = """examples:
  stepwell analyze gain runs/fashion16-uniform-0
  stepwell analyze gain runs/fashion16-uniform-0 --weighting min-snr
  stepwell analyze gain fashion16 data=my/photos model=small steps=500

A workload is trained for a short while first (steps=200), and nothing is written.
"""


def register(verbs: Any) -> None:
    """Add the verb and its subjects to the command line."""
    verb = verbs.add_parser("analyze", help="look at a model before paying for a run", description=__doc__)
    subjects = verb.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    gain = subjects.add_parser(
        "gain",
        help="how much a better choice of timesteps could save",
        description="Measure how the gradient's noise is spread over time, and predict what drawing "
        "timesteps in proportion to it (method=neyman) would save.",
        epilog=_GAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    gain.add_argument("what", metavar="RUN|WORKLOAD", help="a run directory, or what `train` takes")
    gain.add_argument("settings", nargs="*", metavar="key=value", help="of the workload")
    gain.add_argument(
        "-w", "--weighting", metavar="NAME[:key=value,...]", help="another objective than its own"
    )
    gain.add_argument("--strata", type=int, default=20, help="parts of time")
    gain.add_argument("--rounds", type=int, default=5, help="at least 3: they make the intervals")
    gain.add_argument("--images", type=int, default=16, help="in each of a stratum's two halves")
    gain.add_argument("--json", action="store_true", help="the numbers, for programs")
    gain.set_defaults(run=run_gain)


def run_gain(options: argparse.Namespace) -> None:
    """Load or train, measure, print."""
    require_extra()
    from stepwell.analyze.gain import Effort, gain
    from stepwell.catalogue.build import weighting_of

    effort = Effort(options.strata, options.rounds, options.images)
    weighting = None if options.weighting is None else weighting_of(options.weighting)
    made, training, steps = _subject(options)
    recipe, started = made.recipe, time.monotonic()
    batch = recipe.batch * recipe.accumulate
    found = gain(training, made.data.train, batch, effort, weighting, _count)
    if options.json:
        print(json.dumps(_finite({**found.plain(), "steps": steps})))
        return
    objective = options.weighting or _written(recipe.method)
    print(f"{options.what}: {recipe.method} on {recipe.process}, after {steps} steps; objective {objective}")
    count = effort.rounds * effort.strata * 2 * effort.images
    metric = "Adam's metric" if found.metric == "adam" else "the plain metric"
    print(f"{count:,} gradients in {metric}, {time.monotonic() - started:.0f} s\n")
    if _trains_on_another_density(training):
        print(f"Note: {recipe.method} draws unevenly without correction, which is part of what it trains on.")
        print("The figures are for the process's own density.\n")
    print(_report(found, chart.last_time(made.process.timesteps)))
    print(_next(options, found, objective))


def _subject(options: argparse.Namespace) -> tuple[Experiment, Training, int]:
    """The experiment and its training, with weights and Adam's state, and its steps so far."""
    from stepwell.recipes.files import workload_files
    from stepwell.runs.directory import RECIPE

    path = Path(options.what)
    known = options.what.endswith(".toml") or options.what in workload_files()
    if known and not (path / RECIPE).exists():
        return _short_run(options)
    if options.settings:
        raise StepwellError(
            f"{' '.join(options.settings)}: settings belong to a workload, and {path} is not one (known: "
            f"{', '.join(workload_files())}); a run keeps its own."
        )
    if not path.is_dir():
        raise StepwellError(
            f"{path} is neither a run directory nor a workload (known: {', '.join(workload_files())})."
        )
    return _finished_run(path)


def _finished_run(path: Path) -> tuple[Experiment, Training, int]:
    from accelerate import Accelerator

    from stepwell.recipes.build import on_cpu, trained, training_of
    from stepwell.train import checkpoint
    from stepwell.train.tree import to_device

    # The last weights: their average is another point, with another gradient.
    made = trained(path, averaged=False)
    training = training_of(made, Accelerator(cpu=on_cpu(), mixed_precision=made.recipe.precision))
    found, _ = checkpoint.newest(path / "checkpoints")
    assert found is not None, "`trained` has just read it"
    training.optimizer.load_state_dict(to_device(found.tree["optimizer"], training.accelerator.device))
    return made, training, found.info["step"]


def _short_run(options: argparse.Namespace) -> tuple[Experiment, Training, int]:
    from accelerate import Accelerator

    from stepwell.cli.progress import Progress
    from stepwell.recipes.build import experiment, on_cpu, training_of
    from stepwell.recipes.load import load
    from stepwell.train.step import train_step

    recipe = load(options.what, [f"steps={SHORT_STEPS}", *options.settings])
    made = experiment(recipe)
    training = training_of(made, Accelerator(cpu=on_cpu(), mixed_precision=recipe.precision))
    with nullcontext() if options.json else Progress(recipe.steps, None) as progress:
        if progress is not None:
            for note in (*made.data.notes, f"Training {recipe.steps} steps first; nothing is written."):
                progress.say(note)
        for step in range(recipe.steps):
            report = train_step(training, step)
            if progress is not None:
                looks = f"{float(report.u.median()):.2f} of time"
                progress.update(step + 1, {"loss": float(report.plain), "looks": looks})
    return made, training, recipe.steps


def _count(done: int, total: int) -> None:
    """How far a measurement is, where somebody may be watching."""
    if sys.stderr.isatty():
        print(
            f"\rmeasuring {done} of {total} ", end="" if done < total else "\r", file=sys.stderr, flush=True
        )


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
    from stepwell.recipes.method import resolve

    name, given = resolve(method).weighting
    return name + (":" + ",".join(f"{key}={value}" for key, value in given.items()) if given else "")


def _range(estimate: Estimate) -> str:
    return f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"


def _finite(value: Any) -> Any:
    """JSON has no infinity: a critical batch without end is written as null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

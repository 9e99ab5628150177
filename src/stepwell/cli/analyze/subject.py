"""What is analyzed: a run, or a workload that is trained for a short while first."""

from __future__ import annotations

import argparse
import math
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.recipes.build import Experiment
    from stepwell.train.step import Training

SHORT_STEPS = 200
"""Training before a probe of a workload: gradients of fresh weights say little about a run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every subject takes: a run or a workload with its settings, and --json."""
    parser.add_argument("what", metavar="RUN|WORKLOAD", help="a run directory, or what `train` takes")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="of the workload")
    parser.add_argument("--json", action="store_true", help="the numbers, for programs")


def subject(options: argparse.Namespace) -> tuple[Experiment, Training, int]:
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


def count(done: int, total: int) -> None:
    """How far a measurement is, where somebody may be watching."""
    if sys.stderr.isatty():
        print(
            f"\rmeasuring {done} of {total} ", end="" if done < total else "\r", file=sys.stderr, flush=True
        )


def finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: both are written as null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""The run or workload that is analyzed: its plan, or its training at one or several steps."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepwell.cli.options import add_json, whole
from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.analyze.gradient_rounds import Effort
    from stepwell.recipes.experiment import Experiment
    from stepwell.recipes.plan import Plan
    from stepwell.train.step import Training

SHORT_STEPS = 200
"""Training before a workload is measured: gradients of fresh weights say little about a run."""


class Moment(NamedTuple):
    """A training after so many steps."""

    experiment: Experiment
    training: Training
    steps: int

    def title(self, what: str) -> str:
        """The run or workload with its method and process."""
        recipe = self.experiment.recipe
        return f"{what}: {recipe.method} on {recipe.process}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a run or a workload with its settings, and --json."""
    parser.add_argument("what", metavar="RUN|WORKLOAD", help="a run directory, or a workload as in `train`")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the workload")
    add_json(parser)


def add_effort(parser: argparse.ArgumentParser, rounds: int, images: int) -> None:
    """Add --strata, --rounds and --images: how much is measured."""
    parser.add_argument("--strata", type=whole(1000), default=20, help="intervals of time (20)")
    parser.add_argument(
        "--rounds",
        type=whole(1000),
        default=rounds,
        help=f"repeats for the intervals, at least 3 ({rounds})",
    )
    parser.add_argument(
        "--images",
        type=whole(100_000),
        default=images,
        help=f"images in each of a stratum's two halves ({images})",
    )


def effort_of(options: argparse.Namespace) -> Effort:
    """The effort that the options of `add_effort` ask for."""
    from stepwell.analyze.gradient_rounds import Effort

    return Effort(options.strata, options.rounds, options.images)


def plan_of(what: str, settings: Sequence[str] = ()) -> Plan:
    """The plan of a run directory, or of a workload with its settings."""
    from stepwell.recipes.load import load, saved_plan

    run = _run_directory(what, settings)
    return load(what, settings) if run is None else saved_plan(run)


def last_moment(options: argparse.Namespace) -> Moment:
    """A run's last weights with their averages and Adam's state, or a workload after a short training."""
    run = _run_directory(options.what, options.settings)
    if run is not None:
        return _finished_run(run)
    *_, last = _short_run(options, ())
    return last


def moments(options: argparse.Namespace, at: Sequence[int]) -> Iterator[Moment]:
    """One training at several steps: a run's checkpoints (all, if `at` is empty) or a workload's.

    Every moment is the same training object, further on: use one before asking for the next.
    """
    run = _run_directory(options.what, options.settings)
    return _short_run(options, at) if run is None else _checkpoints(run, at)


def _run_directory(what: str, settings: Sequence[str]) -> Path | None:
    """The directory of a run; None if a workload is named."""
    from stepwell.recipes.method import workload_files
    from stepwell.runs.directory import RECIPE

    path = Path(what)
    is_run = (path / RECIPE).exists()
    if not is_run and (what.endswith(".toml") or what in workload_files()):
        return None
    known = ", ".join(workload_files())
    if settings:
        raise StepwellError(
            f"{' '.join(settings)}: only workloads take settings, and {what} is not one (known: {known}); "
            "a run keeps its own."
        )
    if not path.is_dir():
        raise StepwellError(f"{what} is neither a run directory nor a workload (known: {known}).")
    if not is_run:
        raise StepwellError(f"{what} is not a run: it has no {RECIPE}. Train one with out={what}.")
    return path


def _finished_run(run: Path) -> Moment:
    from stepwell.core.tensors import to_device
    from stepwell.recipes.experiment import trained
    from stepwell.recipes.training import accelerator_of, training_of
    from stepwell.train import checkpoint
    from stepwell.train.restore import require_fit

    # Training goes on from the last weights; its EMA has their average.
    experiment = trained(run, averaged=False)
    training = training_of(experiment, accelerator_of(experiment.recipe))
    newest, _ = checkpoint.newest(run / "checkpoints")
    assert newest is not None, "`trained` has just read it"
    require_fit(training, newest)
    training.optimizer.load_state_dict(to_device(newest.tree["optimizer"], training.accelerator.device))
    training.ema.load(newest.tree["ema"])
    return Moment(experiment, training, newest.info["step"])


def _checkpoints(run: Path, at: Sequence[int]) -> Iterator[Moment]:
    from stepwell.train.checkpoint import CheckpointError, file, load, steps
    from stepwell.train.restore import restore

    experiment, training, _ = _finished_run(run)
    files = {step: file(run / "checkpoints", step) for step in steps(run / "checkpoints")}
    missing = [step for step in at if step not in files]
    if missing:
        raise StepwellError(
            f"--at {','.join(map(str, missing))}: {run} keeps the checkpoints of steps "
            f"{', '.join(map(str, sorted(files)))} only; train with a larger keep= to have more."
        )
    for step in sorted(at or files):
        try:
            checkpoint = load(files[step])
        except CheckpointError as error:
            print(f"Skipping {error}", file=sys.stderr)
            continue
        restore(training, checkpoint)
        yield Moment(experiment, training, step)


def _short_run(options: argparse.Namespace, at: Sequence[int]) -> Iterator[Moment]:
    from stepwell.recipes.experiment import experiment
    from stepwell.recipes.load import load
    from stepwell.recipes.training import accelerator_of, training_of

    plan = load(options.what, options.settings, {"steps": max(at, default=SHORT_STEPS)})
    steps = plan.recipe.steps
    ends = sorted(set(at)) or [steps]
    if ends[-1] > steps:
        raise StepwellError(
            f"--at {ends[-1]} comes after the last step: leave steps={steps} out, or give more."
        )
    subject = experiment(plan)
    training = training_of(subject, accelerator_of(plan.recipe))
    for note in (*subject.data.notes, f"Training {ends[-1]} steps first; nothing is written."):
        if not options.json:
            print(note, flush=True)
    for start, end in pairwise([0, *ends]):
        _train(training, range(start, end), quiet=options.json)
        yield Moment(subject, training, end)


def _train(training: Training, steps: range, quiet: bool) -> None:
    from stepwell.cli.progress import TrainingProgress
    from stepwell.train.step import train_step

    training.network.train()
    with nullcontext() if quiet else TrainingProgress(steps.stop) as progress:
        for step in steps:
            report = train_step(training, step)
            if progress is not None:
                progress.at(step + 1, report.progress())

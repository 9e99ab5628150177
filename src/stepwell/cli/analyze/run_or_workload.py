"""The recipe of what is analyzed, where no weights are needed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.recipes.experiment import Experiment
    from stepwell.recipes.plan import Plan
    from stepwell.train.step import Training


def plan_of(what: str, settings: Sequence[str] = ()) -> Plan:
    """The plan of a run directory, or of a workload with its settings."""
    from stepwell.recipes.load import load, saved_plan
    from stepwell.recipes.method import workload_files
    from stepwell.runs.directory import RECIPE

    if (Path(what) / RECIPE).exists():
        if settings:
            raise StepwellError(
                f"{' '.join(settings)}: settings belong to a workload, and {what} is a run: it keeps its own."
            )
        return saved_plan(Path(what))
    if what.endswith(".toml") or what in workload_files():
        return load(what, settings)
    if Path(what).is_dir():
        raise StepwellError(f"{what} is not a run: it has no {RECIPE}. Train one with out={what}.")
    raise StepwellError(
        f"{what} is neither a run directory nor a workload (known: {', '.join(workload_files())})."
    )


SHORT_STEPS = 200
"""Training before a probe of a workload: gradients of fresh weights say little about a run."""


class Moment(NamedTuple):
    """A training, and how far it is."""

    made: Experiment
    training: Training
    steps: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every subject takes: a run or a workload with its settings, and --json."""
    parser.add_argument("what", metavar="RUN|WORKLOAD", help="a run directory, or what `train` takes")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="of the workload")
    parser.add_argument("--json", action="store_true", help="the numbers, for programs")


def subject(options: argparse.Namespace) -> Moment:
    """The experiment and its training, with weights and Adam's state, and its steps so far."""
    path = _run_directory(options)
    if path is not None:
        return _finished_run(path)
    *_, last = _short_run(options, ())
    return last


def moments(options: argparse.Namespace, at: Sequence[int]) -> Iterator[Moment]:
    """One training at several steps: a run's checkpoints (all, if `at` is empty) or a workload's.

    It is the same training object every time, further on: use one before asking for the next.
    """
    path = _run_directory(options)
    return _short_run(options, at) if path is None else _kept(path, at)


def _run_directory(options: argparse.Namespace) -> Path | None:
    """The directory of a run; None if a workload was named."""
    from stepwell.recipes.method import workload_files
    from stepwell.runs.directory import RECIPE

    path = Path(options.what)
    known = options.what.endswith(".toml") or options.what in workload_files()
    if known and not (path / RECIPE).exists():
        return None
    if options.settings:
        raise StepwellError(
            f"{' '.join(options.settings)}: settings belong to a workload, and {path} is not one (known: "
            f"{', '.join(workload_files())}); a run keeps its own."
        )
    if not path.is_dir():
        raise StepwellError(
            f"{path} is neither a run directory nor a workload (known: {', '.join(workload_files())})."
        )
    return path


def _finished_run(path: Path) -> Moment:
    from stepwell.recipes.experiment import trained
    from stepwell.recipes.training import accelerator_of, training_of
    from stepwell.train import checkpoint
    from stepwell.train.checkpoint import to_device

    # The last weights: their average is another point, with another gradient.
    made = trained(path, averaged=False)
    training = training_of(made, accelerator_of(made.recipe))
    found, _ = checkpoint.newest(path / "checkpoints")
    assert found is not None, "`trained` has just read it"
    training.optimizer.load_state_dict(to_device(found.tree["optimizer"], training.accelerator.device))
    return Moment(made, training, found.info["step"])


def _kept(path: Path, at: Sequence[int]) -> Iterator[Moment]:
    from stepwell.train.checkpoint import CheckpointError, load
    from stepwell.train.loop import restore

    made, training, _ = _finished_run(path)
    named = path.glob("checkpoints/step-*.safetensors")
    files = {int(file.stem[5:]): file for file in named if file.stem[5:].isdecimal()}
    lost = [step for step in at if step not in files]
    if lost:
        raise StepwellError(
            f"--at {','.join(map(str, lost))}: {path} keeps the checkpoints of steps "
            f"{', '.join(map(str, sorted(files)))} only; train with a larger keep= to have more."
        )
    for step in sorted(at or files):
        try:
            found = load(files[step])
        except CheckpointError as error:
            print(f"Passing over {error}", file=sys.stderr)
            continue
        restore(training, found)
        yield Moment(made, training, step)


def _short_run(options: argparse.Namespace, at: Sequence[int]) -> Iterator[Moment]:
    from stepwell.recipes.experiment import experiment
    from stepwell.recipes.load import load
    from stepwell.recipes.training import accelerator_of, training_of

    plan = load(options.what, [f"steps={max(at, default=SHORT_STEPS)}", *options.settings])
    steps = plan.recipe.steps
    ends = sorted(set(at)) or [steps]
    if ends[-1] > steps:
        raise StepwellError(
            f"--at {ends[-1]} comes after the last step: leave steps={steps} out, or give more."
        )
    made = experiment(plan)
    training = training_of(made, accelerator_of(plan.recipe))
    for note in (*made.data.notes, f"Training {ends[-1]} steps first; nothing is written."):
        if not options.json:
            print(note, flush=True)
    for start, end in pairwise([0, *ends]):
        _train(training, range(start, end), quiet=options.json)
        yield Moment(made, training, end)


def _train(training: Training, steps: range, quiet: bool) -> None:
    from stepwell.cli.progress import Progress
    from stepwell.train.step import train_step

    training.network.train()
    with nullcontext() if quiet else Progress(steps.stop) as progress:
        for step in steps:
            report = train_step(training, step)
            if progress is not None:
                progress.at(step + 1, report.progress())


def whole_numbers(option: str, given: str | None) -> list[int]:
    """The numbers of an option such as 0,50,200."""
    words = [] if given is None else given.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise StepwellError(f"{option} {given}: write whole numbers with commas between, as in 0,50,200.")
    return sorted({int(word) for word in words})


def count(done: int, total: int) -> None:
    """How far a measurement is, where somebody may be watching."""
    if sys.stderr.isatty():
        print(
            f"\rmeasuring {done} of {total} ", end="" if done < total else "\r", file=sys.stderr, flush=True
        )

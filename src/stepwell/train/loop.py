"""The loop around the step: resume, record, evaluate, checkpoint, stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list

from stepwell.core.density import centres
from stepwell.core.errors import StepwellError
from stepwell.runs.clock import Clock
from stepwell.runs.directory import Run
from stepwell.train import checkpoint
from stepwell.train.interrupt import Interrupt
from stepwell.train.step import Report, Training, train_step
from stepwell.train.tree import to_device

DENSITY_POINTS = 50


class TrainingStopped(StepwellError):
    """Training cannot go on; what was saved is still good."""


@dataclass(frozen=True)
class Plan:
    """How long to train, and what to do once in a while (0: never)."""

    steps: int
    batch_images: int
    """Images per step, over all ranks and micro-batches."""
    data_images: int
    """Images in the training data: with others, the order would be another."""
    seconds: float | None = None
    record_every: int = 50
    evaluate_every: int = 0
    checkpoint_every: int = 0
    keep: int = 2
    inexact: bool = False


@dataclass(frozen=True)
class Hooks:
    """What the loop calls and does not know."""

    evaluate: Callable[[torch.nn.Module], dict[str, Any]]
    progress: Callable[[int, dict[str, Any]], None]
    track: Callable[[dict[str, float], int], None]
    say: Callable[[str], None]


@dataclass
class Position:
    """Where training is."""

    step: int
    clock: Clock


def train(training: Training, run: Run | None, plan: Plan, hooks: Hooks) -> Position:
    """Train to the end of the plan, from the newest checkpoint if there is one; `run` on rank 0 only."""
    at = resume(training, run, plan, hooks)
    leader = Leader(training, run, plan, hooks, at)
    if at.step == 0:
        leader.evaluate()
    over = finished(at, plan)
    with Interrupt(training.accelerator) as interrupt:
        while not over:
            report = train_step(training, at.step)
            at.step += 1
            leader.watch(report)
            # Ranks have their own clocks: whether time is up is agreed upon, as an interruption is.
            interrupted, over = interrupt.agree(finished(at, plan))
            if due(at.step, plan.record_every) or over:
                leader.record(report)
            if due(at.step, plan.evaluate_every) or over:
                leader.evaluate()
            if due(at.step, plan.checkpoint_every) or interrupted or over:
                leader.save()
            if interrupted and not over:
                hooks.say(f"Stopped at step {at.step} and saved. Run the same command again to go on.")
                break
    return at


def due(step: int, every: int) -> bool:
    """Whether a duty falls on this step."""
    return every > 0 and step % every == 0


def finished(at: Position, plan: Plan) -> bool:
    """Whether the plan's steps or seconds are used up."""
    return at.step >= plan.steps or (plan.seconds is not None and at.clock.seconds >= plan.seconds)


def resume(training: Training, run: Run | None, plan: Plan, hooks: Hooks) -> Position:
    """Continue from the newest good checkpoint; every rank reads the same one."""
    folder = checkpoint_folder(training, run)
    found, wrong = checkpoint.newest(folder)
    for message in wrong:
        hooks.say(f"Passing over {message}")
    if found is None and wrong:
        raise TrainingStopped(
            f"none of the checkpoints in {folder} can be read: move them away to start from nothing."
        )
    if found is None:
        if run is not None:
            run.cut_metrics(0)
        return Position(0, Clock())
    world = training.accelerator.num_processes
    if found.info["world"] != world and not plan.inexact:
        raise TrainingStopped(
            f"the run was trained by {found.info['world']} processes and cannot go on exactly with {world}: "
            "use as many, or add --inexact to go on with other draws."
        )
    if found.info["data_images"] != plan.data_images and not plan.inexact:
        raise TrainingStopped(
            f"the training data have {plan.data_images} images and had {found.info['data_images']}: their "
            "order would be another. Restore them, add --inexact to go on all the same, or use another out=."
        )
    restore(training, found)
    if run is not None:
        run.cut_metrics(found.info["metrics_bytes"])
    hooks.say(f"Resumed at step {found.info['step']}.")
    return Position(found.info["step"], Clock(found.info["seconds"]))


def checkpoint_folder(training: Training, run: Run | None) -> Path:
    """The checkpoint folder, told to every rank."""
    shared = [None if run is None else str(run.checkpoints)]
    if training.accelerator.num_processes > 1:
        broadcast_object_list(shared)
    return Path(str(shared[0]))


def restore(training: Training, found: checkpoint.Checkpoint) -> None:
    """Put a checkpoint's state back."""
    network = training.network
    tree = found.tree
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    stored = {name: tuple(value.shape) for name, value in tree["model"].items()}
    if wanted != stored:
        differing = sorted(k for k in wanted.keys() | stored.keys() if wanted.get(k) != stored.get(k))
        raise TrainingStopped(
            f"the checkpoint of step {found.info['step']} belongs to another model: {len(differing)} tensors "
            f"differ, the first is {differing[0]}. Train with the model it was made with, or another out=."
        )
    network.load_state_dict(tree["model"])
    training.optimizer.load_state_dict(to_device(tree["optimizer"], training.accelerator.device))
    training.ema.load(tree["ema"])
    training.pacer.load_state_dict(tree["pacer"])


class Leader:
    """The duties around a step: rank 0 writes, the others keep in step."""

    def __init__(self, training: Training, run: Run | None, plan: Plan, hooks: Hooks, at: Position) -> None:
        self.training, self.run, self.plan, self.hooks, self.at = training, run, plan, hooks, at
        self._last_progress = 0.0

    def watch(self, report: Report) -> None:
        """Stop at a loss that is not finite, while the last checkpoint is still good."""
        # Reading a value costs nothing on the CPU; elsewhere it would stop the device in every step.
        immediate = report.loss.device.type == "cpu" or due(self.at.step, self.plan.record_every)
        if immediate and not bool(torch.isfinite(report.loss) & torch.isfinite(report.gradient_norm)):
            self._not_finite(report)
        now = time.perf_counter()
        if now - self._last_progress > 0.2:
            self._last_progress = now
            looks = f"{float(report.u.median()):.2f} of time"
            self.hooks.progress(self.at.step, {"loss": float(report.plain), "looks": looks})

    def _not_finite(self, report: Report) -> None:
        bad = ~torch.isfinite(report.losses)
        times = training_times(self.training, report.u[bad] if bool(bad.any()) else report.u)
        raise TrainingStopped(
            f"the loss or its gradient is not finite at step {self.at.step} (timesteps {times}). Checkpoints "
            "before it are good: go on from there with a lower lr=, more warm_up_steps= or clip=."
        )

    def record(self, report: Report) -> None:
        """One line of metrics."""
        if self.run is None:
            return
        values = {
            "loss": float(report.loss),
            "plain": float(report.plain),
            "gradient_norm": float(report.gradient_norm),
            "learning_rate": self.training.warm_up.at(self.at.step - 1),
            **{f"sampler/{name}": float(value) for name, value in report.sampler.items()},
        }
        self.run.record({"kind": "train", **self._position(), **values})
        self.hooks.track(values, self.at.step)

    def evaluate(self) -> None:
        """The averaged weights' held-out losses, and where the sampler looks; the clock stands still."""
        if self.plan.evaluate_every == 0:
            return
        with self.at.clock.paused():
            if self.run is not None:
                network = self.training.network
                network.eval()
                with self.training.ema.in_place():
                    values = self.hooks.evaluate(network)
                network.train()
                values |= self._where_it_looks()
                self.run.record({"kind": "evaluation", **self._position(), **values})
                scalars = {name: value for name, value in values.items() if isinstance(value, float)}
                self.hooks.track(scalars, self.at.step)
            self.training.accelerator.wait_for_everyone()

    def _where_it_looks(self) -> dict[str, Any]:
        """The density of the draws over unit time, and the weight of the losses there (mean 1)."""
        pacer, u = self.training.pacer, centres(DENSITY_POINTS).float()
        density = pacer.sampler.density(u)
        # Corrected draws weigh as the reference does, whatever the density.
        drawn = density if pacer.sampler.reference is None else pacer.sampler.reference.pdf(u)
        effective = drawn * pacer.weighting(pacer.process, u)
        effective = effective / effective.mean()
        return {
            "density": [round(height, 6) for height in density.tolist()],
            "effective_weight": [round(weight, 6) for weight in effective.tolist()],
        }

    def save(self) -> None:
        """A checkpoint, by rank 0: every rank holds the same state."""
        with self.at.clock.paused():
            if self.run is not None:
                network = self.training.network
                tree = {
                    "model": network.state_dict(),
                    "ema": self.training.ema.average,
                    "optimizer": self.training.optimizer.state_dict(),
                    "pacer": self.training.pacer.state_dict(),
                }
                info = {
                    **self._position(),
                    "metrics_bytes": self.run.metrics_bytes(),
                    "world": self.training.accelerator.num_processes,
                    "data_images": self.plan.data_images,
                }
                try:
                    checkpoint.save(self.run.checkpoints, checkpoint.Checkpoint(tree, info), self.plan.keep)
                except checkpoint.CheckpointError as error:
                    raise TrainingStopped(f"{error} Make room, then run the same command again.") from error
            self.training.accelerator.wait_for_everyone()

    def _position(self) -> dict[str, Any]:
        return {
            "step": self.at.step,
            "images": self.at.step * self.plan.batch_images,
            "seconds": self.at.clock.seconds,
        }


def training_times(training: Training, u: torch.Tensor) -> str:
    """A few of the process's own times, to name in a message."""
    times = training.objective.process.time(u[:8]).tolist()
    return ", ".join(f"{time:g}" for time in times) + (", ..." if len(u) > 8 else "")

"""Between two steps: check the loss, record metrics, evaluate, save; and how far training is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from stepwell.core.density import centres
from stepwell.runs.directory import Limit, Run
from stepwell.runs.metrics import FORECAST
from stepwell.runs.metrics_file import WINDOW
from stepwell.train import checkpoint
from stepwell.train.sampler_warnings import SamplerWarnings, stayed_at_reference
from stepwell.train.step import StepReport, Training, TrainingStopped, require_finite

DENSITY_POINTS = 50
"""Unit times at which an evaluation records the sampler's density."""


class Clock:
    """Training seconds: they stop during evaluation, and continue from `seconds` after a resume."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before, self._started = seconds, time.perf_counter()
        self._paused = 0

    @property
    def seconds(self) -> float:
        """Training seconds so far."""
        return self._before + (0.0 if self._paused else time.perf_counter() - self._started)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside does not count."""
        self._before = self.seconds
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            self._started = time.perf_counter()


@dataclass(frozen=True)
class LoopSettings:
    """How long to train, and how often to record, evaluate and save (0: never)."""

    limit: Limit
    batch_images: int
    """Images per step, over all ranks and micro-batches."""
    data_images: int
    """Images in the training data: a different number changes the shuffle."""
    example_shape: tuple[int, int, int]
    """Channels, height, width: kept in checkpoints for fine-tuning."""
    record_every: int = 50
    evaluate_every: int = 0
    checkpoint_every: int = 0
    keep: int = 2
    keep_best: str = ""
    """The checkpoint whose evaluation has the lowest value of this key is kept as well; empty: none."""
    sample_every: int = 0
    inexact: bool = False


@dataclass(frozen=True)
class Hooks:
    """What the loop calls without knowing it: evaluation, progress, trackers, messages."""

    evaluate: Callable[[torch.nn.Module], dict[str, Any]]
    measure: Callable[[int], None]
    """Measures the gradient's noise at this step with the weights in place, on every rank."""
    progress: Callable[[int, dict[str, Any]], None]
    track: Callable[[dict[str, Any], int], None]
    sample: Callable[[int], None]
    """Generates a sample sheet at this step: on rank 0, or on every rank if the network is sharded."""
    say: Callable[[str], None]


@dataclass
class Position:
    """How far training is, and what it has warned about."""

    step: int
    clock: Clock
    warnings: SamplerWarnings = field(default_factory=SamplerWarnings)

    def finished(self, limit: Limit) -> bool:
        """Whether steps or seconds are used up."""
        return limit.reached(self.step, self.clock.seconds)


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens at this one."""
    return every > 0 and step % every == 0


class Recorder:
    """What happens between steps: rank 0 writes, the others wait."""

    def __init__(
        self,
        training: Training,
        run: Run | None,
        folder: Path,
        settings: LoopSettings,
        hooks: Hooks,
        at: Position,
    ) -> None:
        self.training, self.run, self.settings, self.hooks, self.at = training, run, settings, hooks, at
        self._folder = folder
        self._last_progress = 0.0
        self._last_record = (at.step * settings.batch_images, at.clock.seconds)
        self._forecast = ""
        self._report: StepReport | None = None

    def check_own(self, report: StepReport) -> None:
        """Stop if this rank's loss is not finite, while the last checkpoint is still good."""
        self._report = report
        if self._readable(report):
            self._require(report, report.loss.isfinite())

    def check(self, report: StepReport) -> None:
        """Stop at a gradient that is not finite though all ranks' losses are; show progress."""
        if self._readable(report):
            self._require(report, report.gradient_norm.isfinite())
        now = time.perf_counter()
        if now - self._last_progress > 0.2:
            self._last_progress = now
            self.hooks.progress(self.at.step, {**report.progress(), "forecast": self._forecast})

    def _readable(self, report: StepReport) -> bool:
        # Reading a value costs nothing on the CPU; on a GPU it would wait for the device in every step.
        return report.loss.device.type == "cpu" or due(self.at.step, self.settings.record_every)

    def _require(self, report: StepReport, finite: torch.Tensor) -> None:
        require_finite(self.training, self.at.step, finite, report.u, report.losses)

    def record(self, report: StepReport) -> None:
        """One line of metrics."""
        if self.run is None:
            return
        values = {
            "loss": float(report.loss),
            "plain": float(report.plain),
            "gradient_norm": float(report.gradient_norm),
            "learning_rate": self.training.learning_rate.at(self.at.step - 1),
            **{f"sampler/{name}": float(value) for name, value in report.sampler.items()},
            "sampler_seconds": self.training.pacer.seconds,
            "images_per_second": self._throughput(),
            **self._forecasts(),
        }
        self.run.record({"kind": "train", **self._position(), **values})
        if due(self.at.step, self.settings.record_every * WINDOW):
            self.run.thin_metrics(self.at.step, self.settings.record_every)
        self.hooks.track(values, self.at.step)
        for message in self.at.warnings.check(values):
            self._warn(message)

    def _throughput(self) -> float:
        """Images a training second since the last record."""
        now = (self.at.step * self.settings.batch_images, self.at.clock.seconds)
        (images, seconds), self._last_record = self._last_record, now
        return (now[0] - images) / max(now[1] - seconds, 1e-9)

    def evaluate(self) -> None:
        """Record what the EMA weights do, and the sampler's density and forecast; the clock is paused."""
        if self.settings.evaluate_every == 0:
            return
        with self.at.clock.paused():
            # Before the first update Adam's preconditioner does not exist. And not at an end between regular
            # evaluations: a run that goes on later must be the same as one that never ended there.
            if self.at.step and due(self.at.step, self.settings.evaluate_every):
                with self.training.ema.in_place():
                    self.hooks.measure(self.at.step)
            if self.run is not None or self.training.sharded:
                network = self.training.network
                network.eval()
                with self.training.ema.in_place():
                    values = self.hooks.evaluate(network)
                network.train()
            if self.run is not None:
                values |= {**self._densities(), **self._forecasts()}
                self.run.record({"kind": "evaluation", **self._position(), **values})
                self.hooks.track(values, self.at.step)
            self.training.accelerator.wait_for_everyone()

    def sample(self) -> None:
        """Images of the EMA weights; the clock is paused."""
        with self.at.clock.paused():
            if self.run is not None or self.training.sharded:
                self.hooks.sample(self.at.step)
            self.training.accelerator.wait_for_everyone()

    def _forecasts(self) -> dict[str, float]:
        """What the draws save, and what the best would."""
        forecast = self.training.pacer.forecast()
        self._forecast = forecast.short()
        return {f"{FORECAST}{name}": value for name, value in forecast.scalars().items()}

    def _densities(self) -> dict[str, Any]:
        """The density of the draws over unit time, and the weight of the losses there (mean 1)."""
        pacer, u = self.training.pacer, centres(DENSITY_POINTS).float()
        density = pacer.sampler.density(u)
        # Corrected draws have the weight of the reference density, however they are drawn.
        drawn = density if pacer.sampler.reference is None else pacer.sampler.reference.pdf(u)
        effective = drawn * pacer.weighting(pacer.process, u)
        effective = effective / effective.mean()
        return {
            "density": [round(height, 6) for height in density.tolist()],
            "effective_weight": [round(weight, 6) for weight in effective.tolist()],
            **{f"sampler/{name}": value.tolist() for name, value in pacer.sampler.diagnostics().items()},
        }

    def finish(self) -> None:
        """Warn if the sampler never got to draw by what it learned."""
        message = stayed_at_reference(self.training.pacer, self.at.step)
        if message and self.run is not None:
            self._warn(message)

    def _warn(self, message: str) -> None:
        assert self.run is not None
        self.run.record({"kind": "warning", **self._position(), "message": message})
        self.hooks.say(f"Warning at step {self.at.step}: {message}")

    def save(self) -> None:
        """Write a checkpoint: rank 0 all of it, or every rank its part if the network is sharded."""
        if self._report is not None:
            self._require(self._report, self._report.loss.isfinite() & self._report.gradient_norm.isfinite())
        with self.at.clock.paused():
            # What only one rank's pacer knows (its own probe's images) goes into the same file.
            pacer = self.training.pacer.gathered_state_dict()
            if self.run is not None:
                # A checkpoint on the disk has its metrics on the disk.
                self.run.sync_metrics()
            if self.run is not None or self.training.sharded:
                stored = checkpoint.Checkpoint(self._tree(pacer), self._info())
                key = self.settings.keep_best
                losses = self.run.evaluations(key) if key and self.run is not None else {}
                try:
                    checkpoint.save(self._folder, stored, self.settings.keep, losses)
                except checkpoint.CheckpointError as error:
                    raise TrainingStopped(f"{error} Make room, then run the same command again.") from error
            self.training.accelerator.wait_for_everyone()

    def _tree(self, pacer: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": self.training.network.state_dict(),
            "ema": self.training.ema.average,
            "optimizer": self.training.optimizer.state_dict(),
            "pacer": pacer,
            "diagnostics": self.at.warnings.state_dict(),
        }

    def _info(self) -> dict[str, Any]:
        return {
            **self._position(),
            "sampler_seconds": self.training.pacer.seconds,
            "recorded": "" if self.run is None else self.run.recorded,
            "recipe": {} if self.run is None else self.run.recipe,
            "world": self.training.accelerator.num_processes,
            "sharded": self.training.sharded,
            "data_images": self.settings.data_images,
            "example_shape": list(self.settings.example_shape),
        }

    def _position(self) -> dict[str, Any]:
        return {
            "step": self.at.step,
            "images": self.at.step * self.settings.batch_images,
            "seconds": self.at.clock.seconds,
        }

"""The training loop: resume, step, record, evaluate, save, and stop cleanly when asked to."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from stepwell.runs.directory import Run
from stepwell.train import checkpoint
from stepwell.train.recorder import Clock, Hooks, LoopSettings, Position, Recorder, due
from stepwell.train.restore import like, restore
from stepwell.train.step import Training, TrainingStopped, train_step

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
SAME_SECONDS = 2.0
"""Signals so close together are one: a terminal and a launcher both send theirs to every process."""


class Interrupt:
    """Catches Ctrl-C, SIGTERM, SIGUSR1 and a lost terminal, so that the step in progress is saved.

    A second one ends the step at once; what is being saved is saved. A signal that is ignored (`nohup`)
    stays ignored.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._before: dict[int, Any] = {}
        self._caught_at: float | None = None
        self._saving = False

    def __enter__(self) -> Interrupt:
        for number in SIGNALS:
            if signal.getsignal(number) == signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, self._catch)
            except ValueError:
                # Not the main thread: signals are the caller's business there.
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._caught_at is None:
            self._caught_at = now
        elif now - self._caught_at > SAME_SECONDS and not self._saving:
            raise KeyboardInterrupt

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """Nothing is interrupted inside."""
        self._saving = True
        try:
            yield
        finally:
            self._saving = False

    def agree(self, over: bool) -> tuple[bool, bool]:
        """Whether any rank was interrupted, and whether any is over; all ranks get the same answer."""
        if self._accelerator.num_processes == 1:
            return self._caught_at is not None, over
        flags: Any = torch.tensor(
            [float(self._caught_at is not None), float(over)], device=self._accelerator.device
        )
        caught, ended = self._accelerator.reduce(flags, "sum").tolist()
        return caught > 0, ended > 0


def train(training: Training, run: Run | None, settings: LoopSettings, hooks: Hooks) -> Position:
    """Train until the limit is reached, from the newest checkpoint if there is one; `run` on rank 0 only."""
    folder = checkpoint_folder(training, run)
    at = resume(training, run, folder, settings, hooks)
    for note in () if run is None else run.notes:
        hooks.say(note)
    recorder = Recorder(training, run, folder, settings, hooks, at)
    if at.step == 0:
        recorder.evaluate()
    over = at.finished(settings.limit)
    with Interrupt(training.accelerator) as interrupt:
        while not over:
            report = train_step(training, at.step)
            at.step += 1
            recorder.check_own(report)
            # Ranks have their own clocks: whether time is up is agreed upon, as an interruption is.
            interrupted, over = interrupt.agree(at.finished(settings.limit))
            # Only now: a loss that is not finite on one rank is in everyone's gradient, and is that rank's.
            recorder.check(report)
            if due(at.step, settings.record_every) or over:
                recorder.record(report)
            if due(at.step, settings.evaluate_every) or over:
                recorder.evaluate()
            if over:
                recorder.finish()
            if due(at.step, settings.sample_every) and not over:
                recorder.sample()
            if due(at.step, settings.checkpoint_every) or interrupted or over:
                with interrupt.held_off():
                    recorder.save()
            if interrupted and not over:
                hooks.say(f"Stopped at step {at.step} and saved. Run the same command again to go on.")
                break
    return at


def resume(
    training: Training, run: Run | None, folder: Path, settings: LoopSettings, hooks: Hooks
) -> Position:
    """Continue from the newest good checkpoint; every rank reads the same one."""
    stored, damaged = checkpoint.newest(folder, like(training) if training.sharded else None)
    for message in damaged:
        hooks.say(f"Passing over {message}")
    if stored is None and damaged:
        raise TrainingStopped(
            f"none of the checkpoints in {folder} can be read: move them away to start from nothing."
        )
    if stored is None:
        if run is not None:
            run.cut_metrics(-1)
        return Position(0, Clock())
    world = training.accelerator.num_processes
    if stored.info["world"] != world and not settings.inexact:
        raise TrainingStopped(
            f"the run was trained by {stored.info['world']} processes and cannot go on exactly with {world}: "
            "use as many, or add --inexact to go on with other draws."
        )
    if stored.info.get("sharded", False) != training.sharded and not settings.inexact:
        before, now = ("full", "none") if stored.info.get("sharded", False) else ("none", "full")
        raise TrainingStopped(
            f"the run was trained with sharding={before} and cannot go on exactly with sharding={now}, which "
            f"adds gradients in another order: write sharding={before}, or add --inexact."
        )
    if stored.info["data_images"] != settings.data_images and not settings.inexact:
        raise TrainingStopped(
            f"the training data have {settings.data_images} images and had {stored.info['data_images']}: a "
            "different size changes the shuffle. Restore them, add --inexact to go on all the same, or use "
            "another out=."
        )
    restore(training, stored)
    if run is not None:
        run.cut_metrics(stored.info["step"], str(stored.info.get("recorded", "")))
    hooks.say(f"Resumed at step {stored.info['step']}.")
    if world == stored.info["world"] > 1 and "ranks" not in stored.tree["pacer"]:
        hooks.say(
            "An older version wrote this checkpoint, without the images that ranks other than 0 kept for a "
            "probe: samplers that measure may go on a little differently."
        )
    at = Position(stored.info["step"], Clock(stored.info["seconds"]))
    at.warnings.load_state_dict(stored.tree.get("diagnostics", {}))
    return at


def checkpoint_folder(training: Training, run: Run | None) -> Path:
    """The checkpoint folder, broadcast to every rank."""
    shared = [None if run is None else str(run.checkpoints)]
    if training.accelerator.num_processes > 1:
        broadcast_object_list(shared)
    return Path(str(shared[0]))

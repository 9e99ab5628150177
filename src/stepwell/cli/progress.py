"""How far a job is: a bar where there is a terminal, now and then a line where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from stepwell.compare.results import BASE

if TYPE_CHECKING:
    from stepwell.compare.pool import Event
    from stepwell.compare.trials import Trial


_LINE_EVERY_SECONDS = 20


class Bar:
    """One line for each task: what is done, of how much, the time left, and a note. On stderr."""

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent
        self._tasks: dict[str, Any] = {}
        self._rich: Any = None
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if not self._silent and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._rich = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                transient=True,
                console=Console(stderr=True),
            )
            self._rich.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._rich is not None:
            self._rich.stop()

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._rich is not None:
            self._rich.console.print(text, highlight=False, markup=False)
        elif not self._silent:
            print(text, flush=True)

    def update(self, task: str, done: int, total: int, note: str = "") -> None:
        """How far a task is; the first call makes it known."""
        if self._rich is not None:
            if task not in self._tasks:
                self._tasks[task] = self._rich.add_task(task, total=total, note="")
            self._rich.update(self._tasks[task], completed=done, total=total, note=note)
        elif not self._silent and time.monotonic() - self._last_line > _LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            print(f"{task}: {done:,} of {total:,}{', ' if note else ''}{note}", file=sys.stderr, flush=True)


class Rate:
    """How much a second since now, when so much was there already."""

    def __init__(self, done: int = 0) -> None:
        self._started, self._done = time.monotonic(), done

    def __call__(self, done: int) -> float:
        """The rate now that so much is done."""
        return (done - self._done) / max(time.monotonic() - self._started, 1e-9)


class Progress(Bar):
    """Steps, rate, time left, loss and the median of the timesteps drawn."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self._rate: Rate | None = None

    def at(self, step: int, values: dict[str, Any]) -> None:
        """Where training is now."""
        if self._rate is None:
            # A resumed run begins somewhere, and what is made once takes time before the first step.
            self._rate = Rate(step)
        note = f"loss {values['loss']:.4f}, {self._rate(step):.1f} steps/s, median u {values['median u']:.2f}"
        self.update("training steps", step, self._steps, note)


class ImagesProgress(Bar):
    """Images, rate and time left, of the process that tells it."""

    def __init__(self, total: int, silent: bool) -> None:
        super().__init__(silent)
        self._total, self._there, self._rate = total, 0, Rate()
        self.rate = 0.0
        """Images a second, of those that were made now."""

    def __call__(self, count: int, made: bool) -> None:
        """A batch of images was made, or was there already."""
        self._there += count
        if not made:
            # The clock of the rate starts with the first batch that has to be made.
            self._rate = Rate(self._there)
        self.rate = self._rate(self._there)
        self.update("images", self._there, self._total, f"{self.rate:.1f} images/s")


_LINE_EVERY_SECONDS_study_progress = 20.0
_BASE, _SHORT = "run that all others start from", "short runs that choose learning rates"


class StudyProgress:
    """One line now and then, and one for every run that ends; on standard error."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._begun: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        self._runs = self._ended = 0
        self._started = self._last = time.monotonic()

    def say(self, message: str) -> None:
        """A line of its own."""
        print(message, file=sys.stderr, flush=True)

    def begin(self, missing: Sequence[Trial], there: int) -> None:
        """A new batch of runs."""
        self._shares, self._begun, self._ended, self._runs = {}, {}, 0, len(missing)
        self._started = self._last = time.monotonic()
        if missing and not self._quiet:
            unscored = _BASE if missing[0].workload == BASE else _SHORT
            kind = "runs" if missing[0].scored else unscored
            self.say(f"{len(missing)} {kind} to do" + (f", {there} are there already" if there else ""))

    def hear(self, event: Event) -> None:
        """Count, and tell."""
        name = event.trial.recipe.out
        self._begun.setdefault(name, event.share)
        self._shares[name] = event.share
        if event.kind == "progress":
            if time.monotonic() - self._last > _LINE_EVERY_SECONDS_study_progress and not self._quiet:
                self._last = time.monotonic()
                self.say(f"  {self._line()}")
            return
        self._ended += 1
        if event.kind == "failed":
            self.say(f"  FAILED {event.trial}: {event.message}")
        elif not self._quiet:
            self.say(f"  {event.kind} {event.trial}  ({self._line()})")

    def _line(self) -> str:
        taken, done = time.monotonic() - self._started, sum(self._shares.values())
        # What was there before a stop took none of this time.
        new = done - sum(self._begun.values())
        left = f"about {_time(taken * (self._runs - done) / new)} left" if new > 0 else "no estimate yet"
        return f"{self._ended} of {self._runs} runs, {100 * done / self._runs:.0f} % of the training, {left}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

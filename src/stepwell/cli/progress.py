"""Progress of long jobs on standard error: a bar in a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from stepwell.compare.results import BASE
from stepwell.runs.status import duration

if TYPE_CHECKING:
    from stepwell.compare.pool import Event
    from stepwell.compare.trials import Trial

_LINE_EVERY_SECONDS = 20
_BASE, _SHORT = "run that all others start from", "short runs that choose learning rates"


class Bar:
    """One line per task: done, total, time left and a note."""

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
        """Print a line above the bar."""
        if self._rich is not None:
            self._rich.console.print(text, highlight=False, markup=False)
        elif not self._silent:
            print(text, flush=True)

    def update(self, task: str, done: int, total: int, note: str = "") -> None:
        """Show how far a task is; the first call adds it."""
        if self._rich is not None:
            if task not in self._tasks:
                self._tasks[task] = self._rich.add_task(task, total=total, note="")
            self._rich.update(self._tasks[task], completed=done, total=total, note=note)
        elif not self._silent and time.monotonic() - self._last_line > _LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            print(f"{task}: {done:,} of {total:,}{', ' if note else ''}{note}", file=sys.stderr, flush=True)


class Rate:
    """Items per second from now on, when `done` items exist already."""

    def __init__(self, done: int = 0) -> None:
        self._started, self._done = time.monotonic(), done

    def __call__(self, done: int) -> float:
        """The rate when so many items are done."""
        return (done - self._done) / max(time.monotonic() - self._started, 1e-9)


class TrainingProgress(Bar):
    """Steps, rate, time left, loss and the median time of the draws."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self._rate: Rate | None = None

    def at(self, step: int, values: dict[str, Any]) -> None:
        """Show the current step with the values of `StepReport.progress`."""
        if self._rate is None:
            # The rate does not count earlier steps of a resumed run, nor the time before the first step.
            self._rate = Rate(step)
        note = f"loss {values['loss']:.4f}, {self._rate(step):.1f} steps/s, median u {values['median u']:.2f}"
        note += f", {values['forecast']}" if values.get("forecast") else ""
        self.update("training steps", step, self._steps, note)


class ImagesProgress(Bar):
    """Images, rate and time left of this process."""

    def __init__(self, total: int, silent: bool) -> None:
        super().__init__(silent)
        self._total, self._done, self._rate = total, 0, Rate()
        self.rate = 0.0
        """Images generated per second."""

    def __call__(self, count: int, made: bool) -> None:
        """Count a batch that was generated now, or existed already."""
        self._done += count
        if not made:
            # The rate counts from the first batch that is generated.
            self._rate = Rate(self._done)
        self.rate = self._rate(self._done)
        self.update("images", self._done, self._total, f"{self.rate:.1f} images/s")


def measuring(done: int, total: int) -> None:
    """Show in a terminal how far a measurement is."""
    if sys.stderr.isatty():
        end = "" if done < total else "\r"
        print(f"\rmeasuring {done} of {total} ", end=end, file=sys.stderr, flush=True)


class StudyProgress:
    """The runs of a study: a line now and then, and one for every run that ends."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._begun: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        self._runs = self._ended = 0
        self._started = self._last = time.monotonic()

    def say(self, message: str) -> None:
        """Print a line."""
        print(message, file=sys.stderr, flush=True)

    def begin(self, missing: Sequence[Trial], there: int) -> None:
        """Start a group of runs, of which `there` are finished already."""
        self._shares, self._begun, self._ended, self._runs = {}, {}, 0, len(missing)
        self._started = self._last = time.monotonic()
        if missing and not self._quiet:
            unscored = _BASE if missing[0].workload == BASE else _SHORT
            kind = "runs" if missing[0].scored else unscored
            self.say(f"{len(missing)} {kind} to do" + (f", {there} are there already" if there else ""))

    def on_event(self, event: Event) -> None:
        """Show an event of a run."""
        name = event.trial.recipe.out
        self._begun.setdefault(name, event.share)
        self._shares[name] = event.share
        if event.kind == "progress":
            if time.monotonic() - self._last > _LINE_EVERY_SECONDS and not self._quiet:
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
        # Training from before a stop took none of this time.
        new = done - sum(self._begun.values())
        left = f"about {duration(taken * (self._runs - done) / new)} left" if new > 0 else "no estimate yet"
        return f"{self._ended} of {self._runs} runs, {100 * done / self._runs:.0f} % of the training, {left}"

"""How far a study is: all its runs together, with the time that is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwell.compare.pool import Event
    from stepwell.compare.trials import Trial

_LINE_EVERY_SECONDS = 20.0


class StudyProgress:
    """One line now and then, and one for every run that ends; on standard error."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._steps: dict[str, int] = {}
        self._total = self._runs = self._ended = 0
        self._first: dict[str, int] = {}
        self._started = self._last = time.monotonic()

    def say(self, message: str) -> None:
        """A line of its own."""
        print(message, file=sys.stderr, flush=True)

    def begin(self, missing: Sequence[Trial], there: int) -> None:
        """A new batch of runs."""
        self._steps, self._first, self._ended, self._runs = {}, {}, 0, len(missing)
        self._total = sum(trial.recipe.steps for trial in missing)
        self._started = self._last = time.monotonic()
        if missing and not self._quiet:
            kind = "short runs that choose learning rates" if not missing[0].scored else "runs"
            self.say(f"{len(missing)} {kind} to do" + (f", {there} are there already" if there else ""))

    def hear(self, event: Event) -> None:
        """Count, and tell."""
        name = event.trial.recipe.out
        self._first.setdefault(name, event.step)
        self._steps[name] = event.step
        if event.kind == "progress":
            if time.monotonic() - self._last > _LINE_EVERY_SECONDS and not self._quiet:
                self._last = time.monotonic()
                self.say(f"  {self._line()}")
            return
        self._ended += 1
        if event.kind == "failed":
            self._steps[name] = event.trial.recipe.steps
            self.say(f"  FAILED {event.trial}: {event.message}")
        elif not self._quiet:
            self.say(f"  {event.kind} {event.trial}  ({self._line()})")

    def _line(self) -> str:
        taken = time.monotonic() - self._started
        done = sum(self._steps.values())
        # Steps from before a stop took none of this time.
        new = done - sum(self._first.values())
        left = taken * (self._total - done) / new if new > 0 else 0.0
        share = done / self._total if self._total else 1.0
        eta = f"about {_time(left)} left" if new > 0 else "no estimate yet"
        return f"{self._ended} of {self._runs} runs, {100 * share:.0f} % of steps, {eta}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

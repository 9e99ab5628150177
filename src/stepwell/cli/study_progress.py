"""How far a study is: all its runs together, with the time that is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepwell.compare.outcome import BASE

if TYPE_CHECKING:
    from stepwell.compare.pool import Event
    from stepwell.compare.trials import Trial

_LINE_EVERY_SECONDS = 20.0
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
        # What was there before a stop took none of this time.
        new = done - sum(self._begun.values())
        left = f"about {_time(taken * (self._runs - done) / new)} left" if new > 0 else "no estimate yet"
        return f"{self._ended} of {self._runs} runs, {100 * done / self._runs:.0f} % of the training, {left}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

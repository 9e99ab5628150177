"""When a run is over: the one place that decides it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """How long a run trains: optimizer steps, or training seconds if those are used up first."""

    steps: int
    seconds: float | None = None

    def reached(self, step: int, seconds: float) -> bool:
        """Whether a run is over after `step` steps and this much training time."""
        return step >= self.steps or (self.seconds is not None and seconds >= self.seconds)

"""The learning rate: a function of the step, so that there is nothing to save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Warmup:
    """Linear over `steps` updates, then constant."""

    rate: float
    steps: int = 0

    def at(self, step: int) -> float:
        """The rate of the update after `step` earlier ones."""
        return self.rate * min(1.0, (step + 1) / self.steps) if self.steps else self.rate

    def apply(self, optimizer: Any, step: int) -> None:
        """Set it."""
        for group in optimizer.param_groups:
            group["lr"] = self.at(step)

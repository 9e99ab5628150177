"""The learning rate: a function of the step, so that there is nothing to save."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STABLE = 0.8
"""The share of training after which `wsd` decays."""
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "wsd": lambda done: min(1.0, (1 - done) / (1 - STABLE)),
}
"""The share of the rate by the share of training done since warm-up. wsd: warm-up, stable, decay."""


@dataclass(frozen=True)
class LearningRate:
    """Linear over `warm_up_steps` updates, then by its schedule, to 0 after `steps` updates."""

    rate: float
    warm_up_steps: int = 0
    schedule: str = "constant"
    steps: int = 0
    """Updates in all; only a schedule that decays needs them."""

    def at(self, step: int) -> float:
        """The rate of the update after `step` earlier ones."""
        if step < self.warm_up_steps:
            return self.rate * ((step + 1) / self.warm_up_steps)
        left = self.steps - self.warm_up_steps
        done = min(1.0, (step - self.warm_up_steps) / left) if left > 0 else 0.0
        return self.rate * SCHEDULES[self.schedule](done)

    def apply(self, optimizer: Any, step: int) -> None:
        """Set it."""
        for group in optimizer.param_groups:
            group["lr"] = self.at(step)

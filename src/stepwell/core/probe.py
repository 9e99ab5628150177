"""What a sampler may ask to be measured, and how often: the sampler owns these numbers, nobody else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from stepwell.core import require
from stepwell.core.errors import InvalidParameter

Times = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProbeSpec(ABC):
    """What every probe has: a rhythm and an objective."""

    every_steps: int
    target: str | None = None
    """The weighting whose objective counts, as NAME or NAME:key=value,...; None: the one that is trained."""

    def __post_init__(self) -> None:
        require.count("every_steps", self.every_steps)
        if self.target is not None and not (isinstance(self.target, str) and self.target):
            raise InvalidParameter(
                "target must name a weighting, such as 'vlb', or be None for the one that is trained, "
                f"not {self.target!r}."
            )

    def due(self, step: int) -> bool:
        """Whether to measure at this step: from the counter alone, so that all ranks agree."""
        return (step + 1) % self.every_steps == 0

    @abstractmethod
    def mapped(self, outside: Callable[[Times], Times]) -> Any:
        """The same measurement with its times seen from outside a warp of unit time."""


@dataclass(frozen=True, slots=True)
class GradientSpec(ProbeSpec):
    """Gradients of strata between `borders` of unit time, one stratum at a time, round-robin."""

    borders: Times = ()
    images: int = 16
    """Examples in each of the two halves, over all ranks."""
    preconditioned: bool = True
    """Whether gradients are measured in the metric of Adam's preconditioner."""
    difference_only: bool = False
    """Only the difference of the halves is needed: one pass instead of two, and the second half is 0."""
    fast_rounds: int = 1
    """Rounds over all strata that come four times as fast: those without which nothing is known."""

    def __post_init__(self) -> None:
        ProbeSpec.__post_init__(self)
        require.count("images", self.images)
        require.count("fast_rounds", self.fast_rounds)
        rising = all(a < b for a, b in pairwise(self.borders))
        if len(self.borders) < 2 or not rising or self.borders[0] < 0 or self.borders[-1] > 1:
            raise InvalidParameter("a gradient probe needs at least 2 borders that rise, within [0, 1].")

    @property
    def strata(self) -> int:
        """How many there are."""
        return len(self.borders) - 1

    def due(self, step: int) -> bool:
        """Faster at first: until the first rounds are over, nothing is known."""
        done = step + 1 - self._fast_steps
        return (step + 1) % self._fast_interval == 0 if done <= 0 else done % self.every_steps == 0

    def stratum(self, step: int) -> int:
        """The stratum whose turn it is at a step that is due."""
        done = step + 1 - self._fast_steps
        turn = (step + 1) // self._fast_interval if done <= 0 else done // self.every_steps
        return (turn - 1) % self.strata

    @property
    def _fast_interval(self) -> int:
        return max(1, self.every_steps // 4)

    @property
    def _fast_steps(self) -> int:
        return self._fast_interval * self.strata * self.fast_rounds

    def mapped(self, outside: Callable[[Times], Times]) -> GradientSpec:
        return replace(self, borders=outside(self.borders))


@dataclass(frozen=True, slots=True)
class DecreaseSpec(ProbeSpec):
    """The fall of the loss over one update (Kim et al. 2025, Algorithm 2).

    A row for one example at the times `grid`, and the rewards of every example at the times `subset`.
    """

    subset: Times = ()
    grid: Times = ()
    fresh_noise: bool = False
    """New noise after the update, as the official code has it: the difference is then mostly noise."""
    train_mode: bool = False
    """Dropout stays on while measuring, as in the official code."""

    def __post_init__(self) -> None:
        ProbeSpec.__post_init__(self)
        if not self.subset or any(not 0 <= u < 1 for u in self.subset + self.grid):
            raise InvalidParameter("a decrease probe needs a subset of at least 1 time, all in [0, 1).")

    def mapped(self, outside: Callable[[Times], Times]) -> DecreaseSpec:
        return replace(self, subset=outside(self.subset), grid=outside(self.grid))

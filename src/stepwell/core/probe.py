"""What a sampler asks to be measured around updates: gradients per stratum of time, or the loss decrease.

A spec says what, where in time and at which steps; `stepwell.probes` measures it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from stepwell.core import require
from stepwell.core.errors import InvalidParameter

Times = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProbeSpec(ABC):
    """What all probes have: an interval and an objective."""

    every_steps: int
    target: str | None = None
    """The weighting of the objective that counts, as NAME or NAME:key=value,...; None: the trained one."""

    def __post_init__(self) -> None:
        require.count("every_steps", self.every_steps)
        if self.target is not None and not (isinstance(self.target, str) and self.target):
            raise InvalidParameter(
                "target must name a weighting, such as 'vlb', or be None for the one that is trained, "
                f"not {self.target!r}."
            )

    def due(self, step: int) -> bool:
        """Whether to measure at this step: a function of the counter, so that all ranks agree."""
        return (step + 1) % self.every_steps == 0

    def for_run(self, batch: int, updates: int | None = None) -> Self:
        """What to measure in a run of so many updates, with this many examples in a batch over all ranks."""
        return self

    @abstractmethod
    def mapped(self, forward: Callable[[Times], Times]) -> Self:
        """The same measurement after a map of unit time."""


FULL_BATCH = 64
"""From this many examples in a batch on, a gradient probe is as its sampler asks for."""
FEWEST_IMAGES = 4
"""In a half: with fewer, a measurement would be mostly what it costs to start one."""
LARGEST_SHARE = 0.05
"""The examples of a smaller batch's probes, as a share of those trained on."""
FIRST_ROUNDS_SHARE = 0.5
"""The fast rounds of a gradient probe take at most this share of a run, where its length is known.

With less, studies of 300 steps would no longer draw as their records did."""


@dataclass(frozen=True, slots=True)
class GradientSpec(ProbeSpec):
    """Gradients of the strata between `borders` of unit time, one stratum at a time, in turn.

    The first rounds come four times as fast, since nothing is known before they are over, or faster still in
    a short run.
    """

    borders: Times = ()
    images: int = 16
    """Examples in each of the two halves, over all ranks."""
    preconditioned: bool = True
    """Whether gradients are measured in the metric of Adam's preconditioner."""
    difference_only: bool = False
    """Whether the difference of the halves is enough: one pass instead of two, and the second half is 0."""
    fast_rounds: int = 1
    """Rounds over all strata that come fast."""
    fast_until: int | None = None
    """The fast rounds are over by this step if a measurement a step is enough for it; None: no limit."""
    follows_batch: tuple[str, ...] = ()
    """Which of `images` and `every_steps` were left to the batch: a small one gets smaller, rarer probes."""

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

    @property
    def fast_steps(self) -> int:
        """Steps that the fast rounds take."""
        return self._fast_interval * self.strata * self.fast_rounds

    def for_run(self, batch: int, updates: int | None = None) -> Self:
        if updates is not None:
            fast_until = math.floor(FIRST_ROUNDS_SHARE * updates)
            return replace(self, fast_until=fast_until).for_run(batch)
        if batch >= FULL_BATCH or not self.follows_batch:
            return self
        images, every_steps = self.images, self.every_steps
        if "images" in self.follows_batch:
            images = min(images, max(FEWEST_IMAGES, images * batch // FULL_BATCH))
        if "every_steps" in self.follows_batch:
            every_steps = max(every_steps, math.ceil(2 * images / (LARGEST_SHARE * max(batch, 1))))
        return replace(self, images=images, every_steps=every_steps, follows_batch=())

    def due(self, step: int) -> bool:
        return self._turn(step)[1] == 0

    def stratum(self, step: int) -> int:
        """The stratum to measure at a step that is due."""
        return (self._turn(step)[0] - 1) % self.strata

    def _turn(self, step: int) -> tuple[int, int]:
        """Measurements until this step, of the fast or of the later rounds, and the steps since."""
        later = step + 1 - self.fast_steps
        return divmod(step + 1, self._fast_interval) if later <= 0 else divmod(later, self.every_steps)

    @property
    def _fast_interval(self) -> int:
        interval = self.every_steps // 4
        if self.fast_until is not None:
            interval = min(interval, self.fast_until // (self.strata * self.fast_rounds))
        return max(1, interval)

    def mapped(self, forward: Callable[[Times], Times]) -> Self:
        return replace(self, borders=forward(self.borders))


@dataclass(frozen=True, slots=True)
class DecreaseSpec(ProbeSpec):
    """The decrease of the loss over one update (Kim et al. 2025, Algorithm 2).

    A row for one example at the times `grid`, and the rewards of every example at the times `subset`.
    """

    subset: Times = ()
    grid: Times = ()
    fresh_noise: bool = False
    """New noise after the update, as in the official code: the difference is then mostly noise."""
    train_mode: bool = False
    """Dropout stays on while measuring, as in the official code."""
    late: bool = False
    """Rewards wait until the sampler has chosen its times from the row (`DecreaseSignal.rewards_at`).

    The trained parameters of before the update are kept that long: as much memory as they take."""
    earlier_example: bool = False
    """The row's example is from the last measurement's batch: this update did not train on it."""
    squared_norm: bool = False
    """Losses are sums over the dimensions of an example, |eps - eps'|^2, instead of means."""

    def __post_init__(self) -> None:
        ProbeSpec.__post_init__(self)
        if not self.subset or any(not 0 <= u < 1 for u in self.subset + self.grid):
            raise InvalidParameter("a decrease probe needs a subset of at least 1 time, all in [0, 1).")

    def mapped(self, forward: Callable[[Times], Times]) -> Self:
        return replace(self, subset=forward(self.subset), grid=forward(self.grid))

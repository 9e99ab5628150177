"""Estimates from a few repeated rounds, with an interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.core.student import t_quantile

FEWEST = 3
"""Rounds below which an interval says nothing."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def within(self, least: float, most: float) -> Estimate:
        """The same, kept in the range where it has a meaning."""
        return Estimate(*(min(max(number, least), most) for number in (self.value, self.low, self.high)))

    def mapped(self, falling: Callable[[float], float]) -> Estimate:
        """The estimate of a falling function of it."""
        return Estimate(falling(self.value), falling(self.high), falling(self.low))


def jackknife(statistic: Callable[[Tensor], Tensor], rounds: int) -> list[Estimate]:
    """Estimates of a statistic [n] of chosen rounds, less its bias of order 1 / rounds (Tukey 1958).

    `statistic` gets the indices of the rounds that it may use; pseudo-values of all rounds make a t interval.
    """
    if rounds < FEWEST:
        raise InvalidParameter(f"{rounds} rounds are too few for an interval: take at least {FEWEST}.")
    every = torch.arange(rounds)
    whole = statistic(every).double()
    without = torch.stack([statistic(every[every != left_out]).double() for left_out in range(rounds)])
    pseudo = rounds * whole - (rounds - 1) * without
    middle = pseudo.mean(0)
    margin = t_quantile(rounds - 1) * pseudo.std(0) / rounds**0.5
    return [
        Estimate(value, value - around, value + around)
        for value, around in zip(middle.tolist(), margin.tolist(), strict=True)
    ]

"""Estimates from a few repeated rounds, with an interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter

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


def t_quantile(freedom: int, inside: float = 0.95) -> float:
    """The number that Student's t stays under in size with probability `inside`, by bisection."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_inside(middle, freedom) < inside else (low, middle)
    return high


def t_inside(size: float, freedom: int) -> float:
    """P(|t| < size) for whole degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(size / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return (angle + sine * total) * 2 / math.pi if odd else sine * total

"""Values with 95 % intervals: Student's t and the jackknife, without a statistics library."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter

MIN_ROUNDS = 3
"""The fewest rounds that make an interval."""
NORMAL = 1.96
"""Standard errors on each side of a 95 % interval, where they are known well."""


@lru_cache(maxsize=256)
def t_quantile(freedom: int, inside: float = 0.95) -> float:
    """The x with P(|t| < x) = `inside`, by bisection."""
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


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, form: str = ".2f") -> str:
        """The value with its interval in brackets; without what is infinite."""
        value, low, high = (f"{number:{form}}" for number in (self.value, self.low, self.high))
        if math.isinf(self.value):
            return f"above {low}"
        return f"{value} (above {low})" if math.isinf(self.high) else f"{value} ({low} to {high})"

    def clamped(self, least: float, most: float) -> Estimate:
        """The same, limited to the range of possible values."""
        return Estimate(*(min(max(number, least), most) for number in (self.value, self.low, self.high)))

    def widened(self, margin: float) -> Estimate:
        """With another, independent source of error, whose 95 % interval alone is plus or minus `margin`."""
        down, up = self.value - self.low, self.high - self.value
        return Estimate(
            self.value, self.value - math.hypot(down, margin), self.value + math.hypot(up, margin)
        )

    def mapped(self, decreasing: Callable[[float], float]) -> Estimate:
        """The estimate of a decreasing function of the value."""
        return Estimate(decreasing(self.value), decreasing(self.high), decreasing(self.low))


def jackknife(statistic: Callable[[Tensor], Tensor], rounds: int) -> list[Estimate]:
    """Estimates of a statistic [n], without its bias of order 1 / rounds (Tukey 1958).

    `statistic` gets the indices of the rounds to use; the pseudo-values of all rounds give a t interval.
    """
    if rounds < MIN_ROUNDS:
        raise InvalidParameter(f"{rounds} rounds are too few for an interval: take at least {MIN_ROUNDS}.")
    every = torch.arange(rounds)
    of_all = statistic(every).double()
    without = torch.stack([statistic(every[every != left_out]).double() for left_out in range(rounds)])
    pseudo = rounds * of_all - (rounds - 1) * without
    middle = pseudo.mean(0)
    margin = t_quantile(rounds - 1) * pseudo.std(0) / rounds**0.5
    return [
        Estimate(value, value - around, value + around)
        for value, around in zip(middle.tolist(), margin.tolist(), strict=True)
    ]

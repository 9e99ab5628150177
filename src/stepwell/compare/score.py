"""What several seeds say together: ratios to a baseline, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_TWO_SIDED = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_ONE_SIDED = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Student's t at 95 % for 1 to 10 degrees of freedom; beyond, the last is a little too wide."""


@dataclass(frozen=True)
class Ratio:
    """A geometric mean of paired ratios with its 95 % interval (t on their logarithms)."""

    mean: float
    low: float
    high: float
    worst: float
    """The one-sided 95 % bound from above."""
    seeds: int

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return "not reached"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


def paired(ratios: Sequence[float]) -> Ratio:
    """Ratios of one method to its baseline on shared seeds; one that is infinite makes all so."""
    count = len(ratios)
    if count == 0 or not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios):
        return Ratio(math.inf, math.nan, math.inf, math.inf, count)
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / count
    if count == 1:
        return Ratio(math.exp(mean), 0.0, math.inf, math.inf, 1)
    error = math.sqrt(sum((log - mean) ** 2 for log in logs) / (count - 1) / count)
    index = min(count - 1, len(_TWO_SIDED)) - 1
    half, side = _TWO_SIDED[index] * error, _ONE_SIDED[index] * error
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), math.exp(mean + side), count)

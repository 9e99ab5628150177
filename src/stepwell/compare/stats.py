"""Statistics over seeds: paired ratios with 95 % intervals, Holm's correction, performance profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.core.estimates import t_inside, t_quantile

FEWEST_SEEDS = 3
"""With fewer there is no verdict: two seeds agree by chance far too often."""
RATE = 0.035
"""Student's t is asked for 96.5 % intervals, so that simulated studies of every kind keep within 5 %.

Ratios of images are not exactly normal in logarithms (benchmarks/false_claims.py).
"""


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of paired ratios with its 95 % interval."""

    mean: float
    low: float
    high: float
    worst: float
    """The one-sided 95 % upper bound."""
    seeds: int
    missed: int = 0
    """Seeds that have no ratio."""
    missing: str = "not reached"
    """What is said of such seeds."""
    p_value: float = 1.0
    """Two-sided, of the hypothesis that the ratio is 1."""

    @property
    def interval(self) -> str:
        """As text; empty if there is none."""
        return f"({self.low:.2f} to {self.high:.2f})" if self.seeds > 1 and not self.missed else ""

    def __str__(self) -> str:
        if self.seeds == 0:
            return "no data"
        if self.missed:
            return f"{self.missing} ({self.missed} of {self.seeds})"
        return f"{self.mean:.2f} {self.interval}".rstrip()

    @property
    def lower(self) -> bool:
        """Significantly below 1: wrong in at most 2.5 % of the studies in which nothing differs."""
        return self.seeds >= FEWEST_SEEDS and not self.missed and self.high < 1

    @property
    def higher(self) -> bool:
        """Significantly above 1, with the same error rate."""
        return self.seeds >= FEWEST_SEEDS and not self.missed and self.low > 1


def paired(ratios: Sequence[float], missing: str = "not reached") -> Ratio:
    """Ratios of a method to its baseline on shared seeds, with Student's t interval on their logarithms.

    If a seed has no ratio (infinite or not a number), there is no mean; `missing` says why.
    """
    count = len(ratios)
    missed = sum(not (math.isfinite(ratio) and ratio > 0) for ratio in ratios)
    if count == 0 or missed:
        return Ratio(math.inf, math.nan, math.inf, math.inf, count, missed, missing)
    logs = [math.log(ratio) for ratio in ratios]
    mean = _mean(logs)
    if count == 1:
        return Ratio(math.exp(mean), 0.0, math.inf, math.inf, 1)
    error = math.sqrt(sum((log - mean) ** 2 for log in logs) / (count - 1) / count)
    p_value = (1.0 if mean == 0 else 0.0) if error == 0 else 1 - t_inside(abs(mean) / error, count - 1)
    half, side = (t_quantile(count - 1, inside) * error for inside in (1 - RATE, 1 - 2 * RATE))
    low, high, worst = (math.exp(mean + shift) for shift in (-half, half, side))
    return Ratio(math.exp(mean), low, high, worst, count, p_value=p_value)


def geometric_mean(per_workload: Sequence[Sequence[float]]) -> Ratio:
    """Over workloads with the same seeds: first a mean per seed, then paired over seeds."""
    by_seed = zip(*per_workload, strict=True)
    return paired([math.exp(_mean([math.log(ratio) for ratio in ratios])) for ratios in by_seed])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def holm(p_values: Sequence[float], rate: float = RATE) -> list[bool]:
    """Which of several claims hold together at one error rate (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    held = [False] * len(p_values)
    for rank, index in enumerate(order):
        if p_values[index] > rate / (len(p_values) - rank):
            break
        held[index] = True
    return held


def profile(times: Sequence[Sequence[float]], factors: Sequence[float]) -> list[list[float]]:
    """Performance profiles (Dolan and Moré 2002): times[method][problem], infinite where it failed.

    For each method the share of problems that it solved within each factor of the best method's time.
    """
    best = [min(problem) for problem in zip(*times, strict=True)]
    return [
        [
            sum(time <= factor * least < math.inf for time, least in zip(own, best, strict=True)) / len(best)
            for factor in factors
        ]
        for own in times
    ]

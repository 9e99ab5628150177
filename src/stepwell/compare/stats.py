"""Statistics over seeds: paired ratios with 95 % intervals, Holm's correction, profiles, learning curves."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepwell.compare.results import Outcome
from stepwell.core.student_t import t_inside, t_quantile

FEWEST_SEEDS = 3
"""With fewer there is no verdict: two seeds agree by chance far too often."""
BOOTSTRAP_SEEDS = 20
"""From here on a bootstrap; over three seeds it would declare a winner in a quarter of null studies."""
RESAMPLES = 4000
WINDOW = 3
"""Evaluations that are averaged, so that no result rests on a single one."""


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
    """Seeds in which the target was not reached."""
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
            return f"not reached ({self.missed} of {self.seeds})"
        return f"{self.mean:.2f} {self.interval}".rstrip()

    @property
    def lower(self) -> bool:
        """Significantly below 1: wrong in 2.5 % of the studies in which nothing differs."""
        return self.seeds >= FEWEST_SEEDS and not self.missed and self.high < 1

    @property
    def higher(self) -> bool:
        """Significantly above 1, with the same error rate."""
        return self.seeds >= FEWEST_SEEDS and not self.missed and self.low > 1


def paired(ratios: Sequence[float]) -> Ratio:
    """Ratios of a method to its baseline on shared seeds: a t interval on logarithms, a bootstrap for many.

    A seed that never reached its target has an infinite ratio, and then there is no mean.
    """
    count = len(ratios)
    missed = sum(not (math.isfinite(ratio) and ratio > 0) for ratio in ratios)
    if count == 0 or missed:
        return Ratio(math.inf, math.nan, math.inf, math.inf, count, missed)
    logs = [math.log(ratio) for ratio in ratios]
    mean = _mean(logs)
    if count == 1:
        return Ratio(math.exp(mean), 0.0, math.inf, math.inf, 1)
    error = math.sqrt(sum((log - mean) ** 2 for log in logs) / (count - 1) / count)
    p_value = (1.0 if mean == 0 else 0.0) if error == 0 else 1 - t_inside(abs(mean) / error, count - 1)
    if count >= BOOTSTRAP_SEEDS:
        low, high, worst = _bootstrap(logs)
    else:
        half, side = (t_quantile(count - 1, inside) * error for inside in (0.95, 0.90))
        low, high, worst = mean - half, mean + half, mean + side
    return Ratio(math.exp(mean), math.exp(low), math.exp(high), math.exp(worst), count, 0, p_value)


def _bootstrap(logs: Sequence[float]) -> tuple[float, float, float]:
    """Percentiles of resampled means: 2.5, 97.5 and 95 %."""
    generator, count = random.Random(0), len(logs)
    means = sorted(_mean(generator.choices(logs, k=count)) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1], means[int(0.95 * RESAMPLES) - 1]


def geometric_mean(per_workload: Sequence[Sequence[float]]) -> Ratio:
    """Over workloads with the same seeds: first a mean per seed, then paired over seeds."""
    by_seed = zip(*per_workload, strict=True)
    return paired([math.exp(_mean([math.log(ratio) for ratio in ratios])) for ratios in by_seed])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def holm(p_values: Sequence[float], rate: float = 0.05) -> list[bool]:
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


def smoothed(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Running means over the last `window` values."""
    return [_mean(values[max(0, index - window + 1) : index + 1]) for index in range(len(values))]


def end(run: Outcome, key: str) -> float:
    """The final smoothed value of a recorded loss."""
    return smoothed(run.values(key)[-WINDOW:])[-1]


def reached(run: Outcome, key: str, target: float, axis: str) -> float:
    """Where on `axis` (seconds, images, step) the smoothed loss first falls to the target; or infinity."""
    positions, values = run.values(axis), smoothed(run.values(key))
    for index, value in enumerate(values):
        if value <= target:
            if index == 0 or not values[index - 1] > value:
                return positions[index]
            share = (values[index - 1] - target) / (values[index - 1] - value)
            return positions[index - 1] + share * (positions[index] - positions[index - 1])
    return math.inf


def time_ratio(run: Outcome, baseline: Outcome, key: str, axis: str = "seconds") -> float:
    """Time to the baseline's final smoothed value, as a share of the baseline's own time to it."""
    target = end(baseline, key)
    own = reached(baseline, key, target, axis)
    return reached(run, key, target, axis) / own if own > 0 else math.nan


def end_ratio(run: Outcome, baseline: Outcome, key: str) -> float:
    """Final value over the baseline's."""
    return end(run, key) / end(baseline, key)


def area_ratio(run: Outcome, baseline: Outcome, key: str, axis: str = "images") -> float:
    """The geometric mean of the loss along the run over that of the baseline, up to the shorter one's end.

    Logarithms are averaged: otherwise the first steps of a loss that falls by orders of magnitude dominate.
    """
    until = min(run.values(axis)[-1], baseline.values(axis)[-1])
    return math.exp(_mean_log(run, key, axis, until) - _mean_log(baseline, key, axis, until))


def _mean_log(run: Outcome, key: str, axis: str, until: float) -> float:
    """The mean logarithm of the smoothed loss from the first evaluation to `until`, by the trapezoid rule."""
    points = [
        (position, math.log(value) if value > 0 else math.nan)
        for position, value in zip(run.values(axis), smoothed(run.values(key)), strict=True)
    ]
    total = 0.0
    for (before, low), (after, high) in pairwise(points):
        if before >= until:
            break
        # The last trapezoid is cut where the shorter run ends.
        share = min(1.0, (until - before) / (after - before)) if after > before else 0.0
        middle = low + (high - low) * share
        total += (low + middle) / 2 * (after - before) * share
    return total / (until - points[0][0]) if until > points[0][0] else math.nan

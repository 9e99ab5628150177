"""What several seeds say together: ratios to a baseline, with intervals that keep their promise."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepwell.compare.results import Outcome
from stepwell.core.student import t_inside, t_quantile

FEWEST_SEEDS = 3
"""With fewer there is no verdict: two seeds agree by chance far too often."""
BOOTSTRAP_SEEDS = 20
"""From here on a bootstrap; over three seeds it would call a winner in a quarter of null studies."""
RESAMPLES = 4000


@dataclass(frozen=True)
class Ratio:
    """A geometric mean of paired ratios with its 95 % interval."""

    mean: float
    low: float
    high: float
    worst: float
    """The one-sided 95 % bound from above."""
    seeds: int
    missed: int = 0
    """Seeds in which the target was not reached."""
    chance: float = 1.0
    """Two-sided p of a ratio that is really 1."""

    def __str__(self) -> str:
        if self.seeds == 0:
            return "no data"
        if self.missed:
            return f"not reached ({self.missed} of {self.seeds})"
        if self.seeds == 1:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def lower(self) -> bool:
        """Surely below 1: errs in 2.5 % of the studies in which nothing differs."""
        return self.seeds >= FEWEST_SEEDS and not self.missed and self.high < 1

    @property
    def higher(self) -> bool:
        """Surely above 1, as often wrong."""
        return self.seeds >= FEWEST_SEEDS and not self.missed and self.low > 1


def paired(ratios: Sequence[float]) -> Ratio:
    """Ratios of one method to its baseline on shared seeds: t on their logarithms, a bootstrap for many.

    A seed that never reached its target has an infinite ratio, and then there is no mean to speak of.
    """
    count = len(ratios)
    missed = sum(not (math.isfinite(ratio) and ratio > 0) for ratio in ratios)
    if count == 0 or missed:
        return Ratio(math.inf, math.nan, math.inf, math.inf, count, missed)
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / count
    if count == 1:
        return Ratio(math.exp(mean), 0.0, math.inf, math.inf, 1)
    error = math.sqrt(sum((log - mean) ** 2 for log in logs) / (count - 1) / count)
    chance = (1.0 if mean == 0 else 0.0) if error == 0 else 1 - t_inside(abs(mean) / error, count - 1)
    if count >= BOOTSTRAP_SEEDS:
        low, high, worst = _bootstrap(logs)
    else:
        half, side = (t_quantile(count - 1, inside) * error for inside in (0.95, 0.90))
        low, high, worst = mean - half, mean + half, mean + side
    return Ratio(math.exp(mean), math.exp(low), math.exp(high), math.exp(worst), count, 0, chance)


def _bootstrap(logs: Sequence[float]) -> tuple[float, float, float]:
    """Percentiles of resampled means: 2.5, 97.5 and 95 %."""
    chance, count = random.Random(0), len(logs)
    means = sorted(sum(chance.choices(logs, k=count)) / count for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1], means[int(0.95 * RESAMPLES) - 1]


def geometric_mean(per_workload: Sequence[Sequence[float]]) -> Ratio:
    """Over workloads, each with the same seeds: a mean per seed first, then seeds as ever."""
    by_seed = zip(*per_workload, strict=True)
    return paired([math.exp(_mean([math.log(ratio) for ratio in ratios])) for ratios in by_seed])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def holm(chances: Sequence[float], rate: float = 0.05) -> list[bool]:
    """Which of several claims hold together at one error rate (Holm 1979)."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    held = [False] * len(chances)
    for rank, index in enumerate(order):
        if chances[index] > rate / (len(chances) - rank):
            break
        held[index] = True
    return held


def profile(times: Sequence[Sequence[float]], factors: Sequence[float]) -> list[list[float]]:
    """Performance profiles (Dolan and Moré 2002): times[method][problem], infinite where it failed.

    For each method the share of problems that it solved within each factor of the best method's time.
    """
    problems = list(zip(*times, strict=True))
    best = [min(problem) for problem in problems]
    return [
        [
            sum(time <= factor * least < math.inf for time, least in zip(mine, best, strict=True)) / len(best)
            for factor in factors
        ]
        for mine in times
    ]


WINDOW = 3
"""Evaluations that are averaged, so that no single one makes a result."""


def smoothed(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Means over the last `window` values."""
    return [
        sum(values[max(0, index - window + 1) : index + 1]) / min(window, index + 1)
        for index in range(len(values))
    ]


def end(run: Outcome, metric: str) -> float:
    """The final smoothed value."""
    return smoothed(run.values(metric)[-WINDOW:])[-1]


def reached(run: Outcome, metric: str, target: float, axis: str) -> float:
    """Where on `axis` (seconds, images, step) the smoothed metric first falls to the target; or infinity."""
    positions, values = run.values(axis), smoothed(run.values(metric))
    for index, value in enumerate(values):
        if value <= target:
            if index == 0 or not values[index - 1] > value:
                return positions[index]
            share = (values[index - 1] - target) / (values[index - 1] - value)
            return positions[index - 1] + share * (positions[index] - positions[index - 1])
    return math.inf


def time_ratio(run: Outcome, baseline: Outcome, metric: str, axis: str = "seconds") -> float:
    """Time to the baseline's final smoothed value, as a share of the baseline's own time to it."""
    target = end(baseline, metric)
    own = reached(baseline, metric, target, axis)
    return reached(run, metric, target, axis) / own if own > 0 else math.nan


def end_ratio(run: Outcome, baseline: Outcome, metric: str) -> float:
    """Final value over the baseline's."""
    return end(run, metric) / end(baseline, metric)


def area_ratio(run: Outcome, baseline: Outcome, metric: str, axis: str = "images") -> float:
    """The geometric mean of the metric along the run over that of the baseline, as far as both went.

    Logarithms are averaged: a curve that falls by orders of magnitude is otherwise all beginning.
    """
    until = min(run.values(axis)[-1], baseline.values(axis)[-1])
    return math.exp(_mean_log(run, metric, axis, until) - _mean_log(baseline, metric, axis, until))


def _mean_log(run: Outcome, metric: str, axis: str, until: float) -> float:
    """The mean logarithm of the smoothed metric from the first evaluation to `until`, by trapezes."""
    points = [
        (position, math.log(value) if value > 0 else math.nan)
        for position, value in zip(run.values(axis), smoothed(run.values(metric)), strict=True)
    ]
    total = 0.0
    for (before, low), (after, high) in pairwise(points):
        if before >= until:
            break
        # The last trapeze is cut where the shorter run ends.
        share = min(1.0, (until - before) / (after - before)) if after > before else 0.0
        middle = low + (high - low) * share
        total += (low + middle) / 2 * (after - before) * share
    return total / (until - points[0][0]) if until > points[0][0] else math.nan

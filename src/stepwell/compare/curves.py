"""What a learning curve says: when it reached a target, where it ended, how low it ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from stepwell.compare.outcome import Outcome

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

"""Time to a target, on curves whose answer is known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stepwell.compare.curves import Curve, reached, smoothed, time_ratio


def curve(values: list[float], seconds: list[float] | None = None) -> Curve:
    times = seconds or [float(index) for index in range(len(values))]
    pairs = zip(times, values, strict=True)
    return Curve(Path(), "any", 0, tuple({"seconds": t, "objective/none": v} for t, v in pairs))


def test_smoothing_looks_back_only() -> None:
    assert smoothed([6.0, 3.0, 0.0, 3.0], window=3) == [6.0, 4.5, 3.0, 2.0]


def test_a_target_is_met_between_evaluations() -> None:
    falling = curve([4.0] * 3 + [1.0] * 3)
    # Smoothed: 4, 4, 4, 3, 2, 1.
    assert reached(falling, "objective/none", 2.5, "seconds") == pytest.approx(3.5)
    assert reached(falling, "objective/none", 0.5, "seconds") == math.inf


def test_a_run_that_is_twice_as_fast_takes_half_the_time() -> None:
    slow = curve([1 / (1 + t) for t in range(40)])
    fast = curve([1 / (1 + t) for t in range(40)], [t / 2 for t in range(40)])
    assert time_ratio(fast, slow, "objective/none") == pytest.approx(0.5)
    assert time_ratio(slow, slow, "objective/none") == pytest.approx(1.0)
    assert time_ratio(slow, curve([1.0] + [0.001] * 39), "objective/none") == math.inf

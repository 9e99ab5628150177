"""Time to a target, ends and areas, on curves whose answer is known."""

from __future__ import annotations

import math

import pytest
from compare.made_runs import outcome

from stepwell.compare.stats import area_ratio, end, end_ratio, reached, smoothed, time_ratio

SIMPLE = "objective/none"


def test_smoothing_looks_back_only() -> None:
    assert smoothed([6.0, 3.0, 0.0, 3.0], window=3) == [6.0, 4.5, 3.0, 2.0]


def test_a_target_is_met_between_evaluations() -> None:
    falling = outcome([4.0] * 3 + [1.0] * 3)
    # Smoothed: 4, 4, 4, 3, 2, 1, ten steps apart.
    assert reached(falling, SIMPLE, 2.5, "step") == pytest.approx(35)
    assert reached(falling, SIMPLE, 2.5, "images") == pytest.approx(350)
    assert reached(falling, SIMPLE, 2.5, "seconds") == pytest.approx(17.5)
    assert reached(falling, SIMPLE, 0.5, "step") == math.inf


def test_a_run_that_is_twice_as_fast_takes_half_the_time() -> None:
    values = [1 / (1 + t) for t in range(40)]
    slow, fast = outcome(values), outcome(values, slow=0.5)
    assert time_ratio(fast, slow, SIMPLE, "seconds") == pytest.approx(0.5)
    assert time_ratio(fast, slow, SIMPLE, "images") == pytest.approx(1.0)
    assert time_ratio(slow, slow, SIMPLE) == pytest.approx(1.0)
    assert time_ratio(slow, outcome([1.0] + [0.001] * 39), SIMPLE) == math.inf


def test_a_miss_is_infinite_and_a_loss_that_is_not_finite_never_reaches() -> None:
    good = outcome([1.0, 0.5, 0.4, 0.3])
    assert time_ratio(outcome([1.0, 0.9, 0.9, 0.9]), good, SIMPLE) == math.inf
    assert time_ratio(outcome([1.0, math.nan, math.nan, math.nan]), good, SIMPLE) == math.inf


def test_ends_are_means_of_three() -> None:
    run = outcome([9.0, 3.0, 2.0, 1.0])
    assert end(run, SIMPLE) == pytest.approx(2.0)
    assert end_ratio(run, outcome([9.0, 6.0, 4.0, 2.0]), SIMPLE) == pytest.approx(0.5)


def test_areas_are_geometric_and_cut_at_the_shorter_run() -> None:
    high, low = outcome([2.0] * 5), outcome([1.0] * 5)
    assert area_ratio(low, high, SIMPLE) == pytest.approx(0.5)
    assert area_ratio(high, high, SIMPLE) == pytest.approx(1.0)
    # What the longer run did after the shorter one's end does not count.
    longer = outcome([1.0] * 5 + [1e-9] * 5)
    assert area_ratio(longer, high, SIMPLE) == pytest.approx(0.5)
    # A straight line of logarithms from 0 to -4 has the mean -2; smoothing lags behind it, alike for both.
    falling = outcome([math.exp(-t) for t in range(5)])
    doubled = outcome([2 * math.exp(-t) for t in range(5)])
    assert area_ratio(doubled, falling, SIMPLE) == pytest.approx(2.0)

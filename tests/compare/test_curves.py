"""Images for the same loss, images to the other's end and ends, on curves whose answer is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from compare.made_runs import outcome
from scipy.optimize import isotonic_regression

from stepwell.compare.curves import (
    Falling,
    at_common_steps,
    comparable,
    end_ratio,
    final,
    reached,
    same_loss_ratio,
    to_end_ratio,
)
from stepwell.compare.results import Outcome

SIMPLE = "objective/simple"


def curve(loss: Callable[[float], float], count: int = 40, **more: float) -> Outcome:
    """A run evaluated `count` times after step 0."""
    return outcome([9.0, *(loss(t) for t in range(1, count + 1))], **more)


def noisy(seed: int) -> Outcome:
    chance = random.Random(seed)
    return curve(lambda t: t**-0.3 * math.exp(chance.gauss(0, 0.03)))


@pytest.mark.parametrize("need", [0.5, 0.8, 1.25, 2.0])
def test_a_power_law_that_needs_a_share_of_the_images(need: float) -> None:
    # Straight lines in logarithms, so interpolation is exact.
    one, two = curve(lambda t: (t / need) ** -0.3), curve(lambda t: t**-0.3)
    assert same_loss_ratio(one, two, SIMPLE) == pytest.approx(need, rel=1e-9)


def test_a_lead_that_grows_is_averaged_over_the_images_spent() -> None:
    """Two power laws that part after the start: the integral of ln(n / n') over dn + dn', by a fine sum."""
    one, two = curve(lambda t: t**-0.4, 12), curve(lambda t: t**-0.3, 12)
    # Warm-up ends at 2 of 12 evaluations; the common losses go from the lower start to the higher end.
    losses = np.geomspace(2**-0.4, 12**-0.3, 20_001)
    fast, slow = losses ** (-1 / 0.4), losses ** (-1 / 0.3)
    gap, spent = np.log(fast / slow), np.diff(fast + slow)
    expected = float(np.exp((gap[1:] + gap[:-1]) @ spent / 2 / spent.sum()))
    assert same_loss_ratio(one, two, SIMPLE) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("need", [0.7, 0.9])
def test_a_curve_that_flattens_out_is_compared_before_it_does(need: float) -> None:
    def loss(t: float) -> float:
        return 0.1 + math.exp(-t / 4)

    one, two = curve(lambda t: loss(t / need)), curve(loss)
    assert same_loss_ratio(one, two, SIMPLE) == pytest.approx(need, abs=0.005)
    # A level that is lower by 3 % on the plateau is no gain of several times: only images before it count.
    lower = curve(lambda t: loss(t) * 0.97)
    assert same_loss_ratio(lower, two, SIMPLE) == pytest.approx(0.97, abs=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_swapping_two_runs_gives_the_reciprocal(seed: int) -> None:
    one, two = noisy(2 * seed), noisy(2 * seed + 1)
    assert same_loss_ratio(one, two, SIMPLE) == pytest.approx(
        1 / same_loss_ratio(two, one, SIMPLE), rel=1e-12
    )
    assert end_ratio(one, two, SIMPLE) == pytest.approx(1 / end_ratio(two, one, SIMPLE), rel=1e-12)


def test_seconds_are_compared_as_images_are() -> None:
    one, two = curve(lambda t: t**-0.3, slow=0.5), curve(lambda t: t**-0.3)
    assert same_loss_ratio(one, two, SIMPLE, "seconds") == pytest.approx(0.5)
    assert same_loss_ratio(one, two, SIMPLE, "images") == pytest.approx(1.0)


def test_where_the_curves_say_nothing_there_is_no_ratio() -> None:
    falling = curve(lambda t: t**-0.3)
    assert math.isnan(same_loss_ratio(falling, curve(lambda t: 5 * t**-0.3), SIMPLE)), "no common losses"
    assert math.isnan(same_loss_ratio(falling, curve(lambda t: 1.0), SIMPLE)), "no progress"
    assert math.isnan(same_loss_ratio(falling, curve(lambda t: math.nan), SIMPLE)), "diverged"
    assert math.isnan(same_loss_ratio(curve(lambda t: 1 / t, 3), falling, SIMPLE)), "three evaluations"


def test_curves_fall_by_isotonic_regression() -> None:
    """Against scipy: its fit at every evaluation is the value of the point that holds it."""
    run = noisy(3)
    logs = [math.log(value) for value in run.values(SIMPLE)[1:]]
    expected = isotonic_regression(logs, increasing=False).x
    points = Falling.of(run, SIMPLE, "images")
    assert points is not None
    assert points.logs == pytest.approx(np.unique(expected)[::-1].tolist(), rel=1e-9)
    assert sorted(points.times) == list(points.times)


def test_only_steps_that_both_have_are_compared() -> None:
    """Evaluated every 10 and every 100 steps, the same curve is the same curve."""

    def loss(t: float) -> float:
        return 0.3 + math.exp(-t / 60) + 0.002 * math.sin(t)

    often = curve(loss, 200)
    rarely = replace(often, evaluations=often.evaluations[::10])
    for one, two in ((often, rarely), (rarely, often)):
        assert same_loss_ratio(one, two, SIMPLE) == 1
        assert to_end_ratio(one, two, SIMPLE) == 1
        assert end_ratio(one, two, SIMPLE) == 1
    few = [replace(often, evaluations=often.evaluations[::100])] * 2
    assert comparable(*few), "their ends can be compared"
    assert math.isnan(same_loss_ratio(*few, SIMPLE)), "their curves cannot"
    shifted = replace(often, evaluations=often.evaluations[5::10])
    assert not comparable(rarely, shifted)
    assert at_common_steps(rarely, shifted)[0].evaluations == ()


def test_evaluations_by_another_quadrature_are_not_compared() -> None:
    old = curve(lambda t: t**-0.3)
    new = replace(old, evaluations=tuple({**record, "quadrature": "new"} for record in old.evaluations))
    assert comparable(old, old)
    assert comparable(new, new)
    assert not comparable(old, new)
    # A run that went on with a new version: each part is compared with its like.
    both = replace(old, evaluations=old.evaluations[:20] + new.evaluations[20:])
    assert [record["step"] for record in at_common_steps(both, old)[0].evaluations] == list(range(0, 200, 10))
    assert at_common_steps(both, new)[0].evaluations[0]["step"] == 200


def test_the_longer_run_is_compared_until_the_shorter_one_ends() -> None:
    short, long = curve(lambda t: t**-0.3, 20), curve(lambda t: t**-0.3, 40)
    assert end_ratio(short, long, SIMPLE) == 1
    assert same_loss_ratio(short, long, SIMPLE) == 1
    assert to_end_ratio(short, long, SIMPLE) == 1


def test_what_was_warmed_up_does_not_count() -> None:
    def late(t: float) -> float:
        return 0.7 if t < 15 else t**-0.3

    one, two = curve(late, warm_up_steps=150), curve(lambda t: t**-0.3)
    assert same_loss_ratio(one, two, SIMPLE) == pytest.approx(1.0)
    assert same_loss_ratio(curve(late), two, SIMPLE) > 1.02


def test_the_end_is_the_mean_of_the_last_tenth_however_often_it_was_evaluated() -> None:
    few, many = curve(lambda t: t, 10), curve(lambda t: t / 10, 100)
    assert final(few, SIMPLE) == pytest.approx(9.5)
    assert final(many, SIMPLE) == pytest.approx(9.5)
    assert final(outcome([9.0, 2.0, 1.0]), SIMPLE) == 1.0


def test_evaluations_at_the_same_time_and_a_loss_of_zero_divide_nothing() -> None:
    still = curve(lambda t: t**-0.3, slow=0.0)
    assert math.isnan(same_loss_ratio(still, still, SIMPLE, "seconds"))
    frozen = replace(still, evaluations=tuple({**r, "seconds": 1.0} for r in still.evaluations))
    assert math.isnan(same_loss_ratio(frozen, still, SIMPLE, "seconds"))
    assert math.isnan(same_loss_ratio(frozen, frozen, SIMPLE, "seconds"))
    assert math.isnan(end_ratio(still, curve(lambda t: 0.0), SIMPLE))


def test_images_to_the_others_end() -> None:
    one, two = curve(lambda t: (t / 0.5) ** -0.3, 100), curve(lambda t: t**-0.3, 100)
    assert to_end_ratio(one, two, SIMPLE) == pytest.approx(0.5, rel=1e-6)
    assert to_end_ratio(two, one, SIMPLE) == math.inf, "not symmetric: a slower run never gets there"
    assert reached(two, SIMPLE, 20**-0.3, "step") == pytest.approx(200)
    assert reached(two, SIMPLE, 20**-0.3, "images") == pytest.approx(2000)
    assert reached(curve(lambda t: math.nan), SIMPLE, 0.5, "images") == math.inf

"""Intervals that keep their promise: against scipy, and over studies in which nothing differs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from compare.made_runs import outcome
from scipy import stats

from stepwell.compare.judgement import Judgement, judge, workload_table
from stepwell.compare.results import Outcome
from stepwell.compare.stats import RATE, geometric_mean, holm, paired, profile
from stepwell.compare.verdict import verdict
from stepwell.runs.metrics import FRECHET, PSNR, loss

SIMPLE = loss("simple")


MANY = [math.exp(random.Random(seed).gauss(-0.1, 0.2)) for seed in range(25)]


@pytest.mark.parametrize("ratios", [[0.5, 0.7, 0.6], [1.1, 0.9], [0.8, 0.85, 0.9, 0.7, 1.3], MANY])
def test_the_interval_is_t_on_logarithms_for_any_number_of_seeds(ratios: list[float]) -> None:
    logs = [math.log(ratio) for ratio in ratios]
    ratio = paired(ratios)
    oracle = stats.ttest_1samp(logs, 0.0)
    low, high = oracle.confidence_interval(1 - RATE)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)
    assert ratio.p_value == pytest.approx(oracle.pvalue, rel=1e-9)
    assert ratio.worst == pytest.approx(math.exp(oracle.confidence_interval(1 - 2 * RATE).high), rel=1e-9)
    assert ratio.mean == pytest.approx(stats.gmean(ratios))


def test_a_miss_leaves_no_mean() -> None:
    ratio = paired([0.5, math.inf, 0.6])
    assert (ratio.missed, ratio.seeds) == (1, 3)
    assert str(ratio) == "not reached (1 of 3)"
    assert str(paired([0.5, math.nan], "curves do not say")) == "curves do not say (1 of 2)"
    assert not ratio.lower
    assert not ratio.higher


def test_few_seeds_claim_nothing_however_clear() -> None:
    assert not paired([0.5]).lower
    assert not paired([0.5, 0.5000001]).lower
    assert paired([0.5, 0.5000001, 0.5]).lower
    assert paired([2.0, 2.1, 2.05]).higher
    assert str(paired([])) == "no data"


def test_claims_that_hold_together() -> None:
    # Sorted: 0.01 <= 0.05 / 4, 0.016 <= 0.05 / 3, 0.03 > 0.05 / 2: the rest falls.
    assert holm([0.03, 0.01, 0.016, 0.04], 0.05) == [False, True, True, False]
    assert holm([]) == []


def test_profiles_of_known_times() -> None:
    times = [[10.0, 40.0, math.inf], [20.0, 20.0, math.inf]]
    assert profile(times, [1.0, 2.0]) == [[1 / 3, 2 / 3], [1 / 3, 2 / 3]]
    assert profile([[1.0], [math.inf]], [1.0, 100.0]) == [[1.0, 1.0], [0.0, 0.0]]


def test_workloads_are_averaged_within_a_seed_first() -> None:
    ratio = geometric_mean([[0.5, 0.5, 0.5], [2.0, 2.0, 2.0]])
    assert ratio.mean == pytest.approx(1.0)
    assert geometric_mean([[0.25, 0.5, 0.36]]) == paired([0.25, 0.5, 0.36])


Course = Callable[[random.Random], Callable[[float], float]]
"""A run's own loss over t from 1 to 20."""


def power_law(chance: random.Random) -> Callable[[float], float]:
    level = chance.gauss(0, 0.03)
    return lambda t: math.exp(level - 0.5 * math.log(1 + t) + chance.gauss(0, 0.01))


def to_a_floor(chance: random.Random) -> Callable[[float], float]:
    level = math.exp(chance.gauss(0, 0.03))
    return lambda t: level * (0.1 + math.exp(-t / 2))


def crossing(chance: random.Random) -> Callable[[float], float]:
    exponent = chance.gauss(0.3, 0.05)
    return lambda t: (t / 8) ** -exponent


def null_study(chance: random.Random, course: Course) -> Judgement:
    """Three seeds of the same thing under two names."""

    def run(method: str, seed: int) -> Outcome:
        loss = course(chance)
        return outcome([9.0, *(loss(t) for t in range(1, 21))], method, seed)

    runs = [[run(method, seed) for seed in range(3)] for method in ("uniform", "other")]
    return judge("w", runs[1], runs[0], SIMPLE)


@pytest.mark.parametrize("course", [power_law, to_a_floor, crossing])
def test_nothing_wins_against_itself_more_often_than_said(course: Course) -> None:
    """600 studies in which nothing differs: at most 2.5 % may claim fewer images, and as many more.

    If the true rate is 2.5 %, more than 31 of 600 happen with probability 1e-4 (binomial). Of the measure
    before November 2026, 7 to 12 % claimed "sooner" on the floor: 31 or fewer then have odds below 2 %.
    The mean over studies is 1 within four standard errors.
    """
    chance = random.Random(7)
    judged = [null_study(chance, course) for _ in range(600)]
    fewer, more = (sum(getattr(j.decisive, side) for j in judged) for side in ("lower", "higher"))
    assert fewer <= 31
    assert more <= 31
    assert fewer + more > 0, "a test that never claims would say nothing"
    logs = [math.log(j.images.mean) for j in judged if not j.images.missed]
    assert len(logs) > 550
    assert abs(sum(logs)) < 4 * math.sqrt(sum(log**2 for log in logs))


def test_ends_claim_at_the_stated_rate() -> None:
    """Ratios of ends are normal in logarithms here: 4 % of 600, within the binomial's 1e-4 tails."""
    chance = random.Random(11)
    ends = [null_study(chance, power_law).end for _ in range(600)]
    assert 8 <= sum(ratio.lower or ratio.higher for ratio in ends) <= 45


def falling(method: str, speed: float, seeds: int = 3) -> list[Outcome]:
    return [
        outcome([1 / (1 + speed * t) * (1 + 0.01 * s) for t in range(40)], method, s) for s in range(seeds)
    ]


def test_a_true_winner_is_found_and_said() -> None:
    base, twice = falling("uniform", 1), falling("neyman", 2)
    judgement = judge("w", twice, base, SIMPLE)
    assert judgement.images.mean == pytest.approx(0.5, abs=0.02)
    assert judgement.images_to_end.mean == pytest.approx(0.5, abs=0.02)
    first, second = verdict([judgement], SIMPLE)
    assert first.startswith("neyman needs 0.5")
    assert first.endswith("of uniform's images for the same simple loss.")
    assert second.startswith("That took 0.5")
    worse = judge("w", base, twice, SIMPLE)
    assert worse.images.mean == pytest.approx(1 / judgement.images.mean), (
        "as much more as the other needs less"
    )
    assert worse.images_to_end.missed == 3
    first, second = verdict([worse], SIMPLE)
    assert first == "No method surely needs fewer images than neyman for the same simple loss."
    assert second.startswith("Surely worse: uniform needs 2.0")


def test_where_the_curves_do_not_say_the_final_loss_decides() -> None:
    def flat(method: str, level: float) -> list[Outcome]:
        return [outcome([9.0] + [level * (1 + 0.001 * s)] * 20, method, s) for s in range(3)]

    judgement = judge("w", flat("neyman", 0.4), flat("uniform", 0.5), SIMPLE)
    assert str(judgement.images) == "curves do not say (3 of 3)"
    first, *more = verdict([judgement], SIMPLE)
    assert first.startswith("neyman ends at 0.80 (0.80 to 0.80) of uniform's")
    assert more == [], "nothing is said of time or images that were not measured"
    diverged = [outcome([9.0] + [math.nan] * 20, "neyman", s) for s in range(3)]
    assert str(judge("w", diverged, flat("uniform", 0.5), SIMPLE).end) == "diverged (3 of 3)"


def test_scores_of_other_lengths_or_other_images_are_not_compared() -> None:
    def scored(method: str, generated: int) -> list[Outcome]:
        features = {"frechet_distance": 3.0, "generated": generated}
        return [replace(run, score={"fashion16_features": features}) for run in falling(method, 1)]

    base, few = scored("uniform", 500), scored("neyman", 100)
    assert judge("w", scored("neyman", 500), base, SIMPLE).scores[FRECHET.key].mean == 1
    assert judge("w", few, base, SIMPLE).scores[FRECHET.key].seeds == 0
    longer = [replace(run, recipe=replace(run.recipe, steps=800)) for run in scored("neyman", 500)]
    assert judge("w", longer, base, SIMPLE).scores[FRECHET.key].seeds == 0


def test_psnr_is_compared_as_an_error_so_that_below_one_is_better() -> None:
    def runs(method: str, psnr: float) -> list[Outcome]:
        falling = [1 / (1 + t * (2 if method == "neyman" else 1)) for t in range(40)]
        bare = [outcome(falling, method, seed, super_resolution=4) for seed in range(3)]
        return [replace(run, score={"super_resolution": {"psnr": psnr + 0.01 * run.seed}}) for run in bare]

    judgement = judge("w", runs("neyman", 26.0), runs("uniform", 20.0), SIMPLE)
    ratio = judgement.scores[PSNR.key]
    assert ratio.lower
    assert ratio.mean == pytest.approx(10 ** (-6 / 20)), "6 dB more is half the RMS error"
    assert "the RMS error at the end is better, 0.50" in verdict([judgement], SIMPLE)[1]
    by_method = {"uniform": runs("uniform", 20.0), "neyman": runs("neyman", 26.0)}
    table = workload_table(by_method, [judgement], [SIMPLE])
    row = dict(zip(table.columns, table.rows[1], strict=True))
    assert row["RMS error"] == ratio
    assert row["PSNR (dB, higher is better)"] == pytest.approx(26.01)
    assert "RMS error" not in workload_table({"uniform": [outcome([1.0, 0.5])]}, [], [SIMPLE]).columns


def test_two_seeds_are_no_verdict() -> None:
    first, second = verdict([judge("w", falling("neyman", 2, 2), falling("uniform", 1, 2), SIMPLE)], SIMPLE)
    assert first == "No verdict: 2 seeds are shared by two methods, and a verdict needs at least 3."
    assert "an impression, not a result" in second
    assert verdict([], SIMPLE)[0].startswith("No verdict")

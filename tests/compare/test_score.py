"""Intervals that keep their promise: against scipy, and over studies in which nothing differs."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from compare.made_runs import outcome
from scipy import stats

from stepwell.compare.judgement import Judgement, judge, workload_table
from stepwell.compare.results import Outcome
from stepwell.compare.stats import BOOTSTRAP_SEEDS, geometric_mean, holm, paired, profile
from stepwell.compare.verdict import verdict
from stepwell.runs.metrics import PSNR, loss

SIMPLE = loss("simple")


@pytest.mark.parametrize("ratios", [[0.5, 0.7, 0.6], [1.1, 0.9], [0.8, 0.85, 0.9, 0.7, 1.3]])
def test_the_interval_is_t_on_logarithms(ratios: list[float]) -> None:
    logs = [math.log(ratio) for ratio in ratios]
    ratio = paired(ratios)
    oracle = stats.ttest_1samp(logs, 0.0)
    low, high = oracle.confidence_interval(0.95)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)
    assert ratio.p_value == pytest.approx(oracle.pvalue, rel=1e-9)
    assert ratio.worst == pytest.approx(math.exp(oracle.confidence_interval(0.90).high), rel=1e-9)
    assert ratio.mean == pytest.approx(stats.gmean(ratios))


def test_a_miss_leaves_no_mean() -> None:
    ratio = paired([0.5, math.inf, 0.6])
    assert (ratio.missed, ratio.seeds) == (1, 3)
    assert str(ratio) == "not reached (1 of 3)"
    assert not ratio.lower
    assert not ratio.higher


def test_few_seeds_claim_nothing_however_clear() -> None:
    assert not paired([0.5]).lower
    assert not paired([0.5, 0.5000001]).lower
    assert paired([0.5, 0.5000001, 0.5]).lower
    assert paired([2.0, 2.1, 2.05]).higher
    assert str(paired([])) == "no data"


def test_many_seeds_are_resampled() -> None:
    chance = random.Random(1)
    ratios = [math.exp(chance.gauss(-0.1, 0.2)) for _ in range(BOOTSTRAP_SEEDS)]
    ratio, few = paired(ratios), paired(ratios[: BOOTSTRAP_SEEDS - 1])
    assert ratio.low < ratio.mean < ratio.high
    assert (ratio.low, ratio.high) == pytest.approx((few.low, few.high), rel=0.05)
    assert ratio == paired(ratios), "the same every time"


def test_claims_that_hold_together() -> None:
    # Sorted: 0.01 <= 0.05 / 4, 0.016 <= 0.05 / 3, 0.03 > 0.05 / 2: the rest falls.
    assert holm([0.03, 0.01, 0.016, 0.04]) == [False, True, True, False]
    assert holm([]) == []


def test_profiles_of_known_times() -> None:
    times = [[10.0, 40.0, math.inf], [20.0, 20.0, math.inf]]
    assert profile(times, [1.0, 2.0]) == [[1 / 3, 2 / 3], [1 / 3, 2 / 3]]
    assert profile([[1.0], [math.inf]], [1.0, 100.0]) == [[1.0, 1.0], [0.0, 0.0]]


def test_workloads_are_averaged_within_a_seed_first() -> None:
    ratio = geometric_mean([[0.5, 0.5, 0.5], [2.0, 2.0, 2.0]])
    assert ratio.mean == pytest.approx(1.0)
    assert geometric_mean([[0.25, 0.5, 0.36]]) == paired([0.25, 0.5, 0.36])


def null_study(chance: random.Random, methods: int = 1) -> list[Judgement]:
    """Three seeds of the same thing under several names: curves with a seed's own level and noise."""

    def run(method: str, seed: int, level: float) -> Outcome:
        own = level + chance.gauss(0, 0.03)
        return outcome(
            [math.exp(own - 0.5 * math.log(1 + t) + chance.gauss(0, 0.01)) for t in range(20)], method, seed
        )

    levels = [chance.gauss(0, 0.05) for _ in range(3)]
    base = [run("uniform", seed, level) for seed, level in enumerate(levels)]
    others = [f"other-{number}" for number in range(methods)]
    return [
        judge("w", [run(name, seed, level) for seed, level in enumerate(levels)], base, SIMPLE)
        for name in others
    ]


def test_nothing_wins_against_itself_more_often_than_said() -> None:
    """1,000 studies in which nothing differs: at most 5 % may claim a difference.

    If the true rate is 5 %, more than 75 of 1,000 claims happen with probability 3e-4 (binomial).
    """
    chance = random.Random(7)
    claims = sooner = 0
    for _ in range(1000):
        (judgement,) = null_study(chance)
        sooner += judgement.images.lower
        claims += judgement.images.lower or judgement.end.higher
    assert claims <= 75
    assert sooner <= 45, "2.5 % and its chance: binomial tail 1e-4"
    assert claims > 0, "a test that never claims would say nothing"


def test_ends_claim_at_exactly_the_stated_rate() -> None:
    """Ratios of ends are normal in logarithms here: 5 % of 1,000, within the binomial's 1e-4 tails."""
    chance = random.Random(11)
    ends = [null_study(chance)[0].end for _ in range(1000)]
    assert 25 <= sum(ratio.lower or ratio.higher for ratio in ends) <= 78


def test_a_true_winner_is_found_and_said() -> None:
    base = [outcome([1 / (1 + t) * (1 + 0.01 * s) for t in range(40)], "uniform", s) for s in range(3)]
    twice = [outcome([1 / (1 + 2 * t) * (1 + 0.01 * s) for t in range(40)], "neyman", s) for s in range(3)]
    judgement = judge("w", twice, base, SIMPLE)
    assert judgement.images.mean == pytest.approx(0.5, abs=0.03)
    first, second = verdict([judgement], SIMPLE)
    assert first.startswith("neyman reaches uniform's final simple loss with 0.5")
    assert first.endswith("of the images.")
    assert second.startswith("That took 0.5")
    worse = judge("w", base, twice, SIMPLE)
    assert worse.images.missed == 3
    first, second = verdict([worse], SIMPLE)
    assert first == "No method surely reaches neyman's final simple loss sooner."
    assert second.startswith("Surely worse at the end: uniform ")


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
    base = [outcome([1.0, 0.5, 0.4, 0.3], "uniform", s) for s in range(2)]
    other = [outcome([1.0, 0.4, 0.3, 0.2], "neyman", s) for s in range(2)]
    first, second = verdict([judge("w", other, base, SIMPLE)], SIMPLE)
    assert first == "No verdict: 2 seeds are shared by two methods, and a verdict needs at least 3."
    assert "an impression, not a result" in second
    assert verdict([], SIMPLE)[0].startswith("No verdict")

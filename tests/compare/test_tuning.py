"""Learning rates: the grid grows until it holds the best one, and rates that failed are not chosen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from compare.made_runs import write_run

from stepwell.compare.study import Study, Tuning, load_study
from stepwell.compare.summary import summarise_runs
from stepwell.compare.trials import Trial
from stepwell.compare.tuning import Tuned, _agreed, _best, tuned


def study(widen: int = 4) -> Study:
    loaded = load_study("fashion16", ["methods=uniform,neyman", "steps=160"])
    return replace(loaded, tune=Tuning((1e-3, 2e-3), widen=widen, least_steps=40))


def run_all(study: Study, out: Path, end: Callable[[Trial], float], failed: tuple[Path, ...] = ()) -> Tuned:
    """As a study runs: every round trains what is missing, until nothing is."""
    while True:
        known = tuned(study, out, None, failed)
        missing = [t for t in known.trials if t.outcome() is None and t.folders[0] not in failed]
        if not missing:
            return known
        for trial in missing:
            recipe = asdict(trial.recipe)
            # 40 steps: a quarter of the run.
            curve = [1.0, 0.9, 0.8, 0.7, end(trial)]
            write_run(trial.folders[0], curve, recipe.pop("method"), recipe.pop("seed"), **recipe)


def bowl(best: float) -> Callable[[Trial], float]:
    return lambda trial: 0.1 + 0.01 * math.log2(trial.recipe.lr / best) ** 2


def test_the_grid_grows_for_all_methods_until_it_holds_the_best_rate(tmp_path: Path) -> None:
    known = run_all(study(), tmp_path, bowl(8e-3))
    assert known.rates == {"uniform": 8e-3, "neyman": 8e-3}
    assert known.edges == ()
    assert {trial.recipe.lr for trial in known.trials} == {1e-3, 2e-3, 4e-3, 8e-3, 16e-3}
    assert {trial.recipe.seed for trial in known.trials} == {100, 101}
    downwards = run_all(study(), tmp_path / "down", bowl(2.5e-4))
    assert downwards.rates["uniform"] == 2.5e-4
    assert min(trial.recipe.lr for trial in downwards.trials) == 1.25e-4


def test_methods_may_pull_the_grid_both_ways(tmp_path: Path) -> None:
    ways = {"uniform": bowl(5e-4), "neyman": bowl(4e-3)}
    known = run_all(study(), tmp_path, lambda trial: ways[trial.recipe.method](trial))
    assert known.rates == {"uniform": 5e-4, "neyman": 4e-3}
    assert known.edges == ()


def test_an_edge_is_said_in_the_verdict(tmp_path: Path) -> None:
    known = run_all(study(widen=1), tmp_path, bowl(1.0))
    assert known.rates == {"uniform": 4e-3, "neyman": 4e-3}
    assert known.edges == ("uniform", "neyman")
    runs = [trial.outcome() for trial in known.trials]
    summary = summarise_runs([run for run in runs if run is not None], [], known.of(study(widen=1)))
    assert summary.verdict[-1].endswith("another verdict: uniform (0.004), neyman (0.004).")


def test_a_rate_at_which_a_run_failed_is_not_chosen(tmp_path: Path) -> None:
    def fails(trial: Trial) -> float:
        # By far the best rate on average, but one of its two runs ends where it began.
        if trial.recipe.lr == 4e-3:
            return 1.0 if trial.recipe.seed == 101 else 1e-9
        return 1e-4 / trial.recipe.lr

    known = run_all(study(), tmp_path, fails)
    assert known.rates["uniform"] == 2e-3
    assert max(trial.recipe.lr for trial in known.trials) == 4e-3, "no reason to go further"
    nan = run_all(study(), tmp_path / "nan", lambda t: math.nan if t.recipe.lr > 3e-3 else 1e-4 / t.recipe.lr)
    assert nan.rates["uniform"] == 2e-3


def test_a_run_that_crashed_counts_as_failed(tmp_path: Path) -> None:
    crashed = tmp_path / "tuning" / "uniform" / "0.002"
    known = run_all(study(widen=0), tmp_path, lambda trial: 1e-4 / trial.recipe.lr, (crashed,))
    assert known.rates == {"uniform": 1e-3, "neyman": 2e-3}


def test_a_method_whose_every_rate_failed_is_named(tmp_path: Path) -> None:
    known = run_all(study(widen=1), tmp_path, lambda t: 1.0 if t.recipe.method == "neyman" else bowl(2e-3)(t))
    assert known.rates == {"uniform": 2e-3}
    assert known.edges == ("neyman",)
    runs = [trial.outcome() for trial in known.trials]
    summary = summarise_runs([run for run in runs if run is not None], [], known.of(study(widen=1)))
    assert summary.verdict[-1].endswith("neyman (every rate failed).")
    assert tuned(study(), tmp_path / "empty", None).edges == (), "nothing is known before the first run"


def test_next_to_a_rate_that_fails_the_one_below_is_taken_if_it_is_nearly_as_good() -> None:
    grid = (1e-3, 2e-3, 4e-3, 8e-3)
    best, below = math.log(0.05), math.log(0.05 * 1.005)
    known = {1e-3: math.log(0.06), 2e-3: below, 4e-3: best, 8e-3: math.log(0.07)}
    assert _best(known, grid, caution=0.01) == 2e-3
    # A rate at which a run failed has no end at all.
    assert _best({rate: end for rate, end in known.items() if rate < 8e-3}, grid, caution=0.01) == 2e-3
    # Nothing fails above; or the one below is worse; or nothing is risked for caution.
    assert _best({**known, 8e-3: math.log(0.052)}, grid, caution=0.01) == 4e-3
    assert _best({**known, 2e-3: math.log(0.051)}, grid, caution=0.01) == 4e-3
    assert _best(known, grid, caution=0.0) == 4e-3
    # At an edge nothing is known of what lies beyond: the grid is widened first.
    assert _best({1e-3: 0.0, 2e-3: 0.0, 4e-3: 0.0, 8e-3: -1.0}, grid, caution=0.01) == 8e-3


def test_caution_of_a_study_decides_how_much_a_lower_rate_may_cost(tmp_path: Path) -> None:
    ends = {1e-3: 0.12, 2e-3: 0.102, 4e-3: 0.1, 8e-3: 0.9}
    four = replace(study(widen=0), methods=("uniform",), tune=Tuning(tuple(ends), widen=0, least_steps=40))
    assert run_all(four, tmp_path, lambda trial: ends[trial.recipe.lr]).rates == {"uniform": 2e-3}
    assert four.tune is not None
    bold = replace(four, tune=replace(four.tune, caution=0.01))
    assert tuned(bold, tmp_path, None).rates == {"uniform": 4e-3}


def test_methods_that_are_compared_share_a_rate_where_it_is_as_good(tmp_path: Path) -> None:
    ends = {"uniform": {1e-3: 0.103, 2e-3: 0.1}, "neyman": {1e-3: 0.09, 2e-3: 0.0905}}
    flat = run_all(study(widen=0), tmp_path, lambda trial: ends[trial.recipe.method][trial.recipe.lr])
    assert flat.rates == {"uniform": 2e-3, "neyman": 2e-3}, "0.6 % more at the baseline's rate is level"
    ends["neyman"][2e-3] = 0.0915
    other = tmp_path / "apart"
    clear = run_all(study(widen=0), other, lambda trial: ends[trial.recipe.method][trial.recipe.lr])
    assert clear.rates == {"uniform": 2e-3, "neyman": 1e-3}, "1.7 % is not"
    apart = replace(study(widen=0), tune=Tuning((1e-3, 2e-3), widen=0, least_steps=40, tie=0))
    assert tuned(apart, tmp_path, None).rates == {"uniform": 2e-3, "neyman": 1e-3}, "nothing is level"


def test_the_shared_rate_is_that_of_the_method_one_is_judged_against() -> None:
    both = replace(study(), methods=("uniform", "min-snr", "neyman+min-snr"))
    judged = replace(both, against={"neyman+min-snr": "min-snr"})
    ends = {
        "uniform": {1e-3: 0.0, 2e-3: 0.1},
        "min-snr": {1e-3: 0.1, 2e-3: 0.0},
        "neyman+min-snr": {1e-3: 0.0, 2e-3: 0.005},
    }
    best = {"uniform": 1e-3, "min-snr": 2e-3, "neyman+min-snr": 1e-3}
    assert _agreed(judged, "neyman+min-snr", ends, best) == 2e-3
    assert _agreed(both, "neyman+min-snr", ends, best) == 1e-3
    assert _agreed(judged, "min-snr", ends, best) == 2e-3
    # What both sides of a pair agree on is passed on, and a study may judge two methods against each other.
    ends["min-snr"] = {1e-3: 0.005, 2e-3: 0.0}
    assert _agreed(judged, "neyman+min-snr", ends, best) == 1e-3
    circle = replace(judged, against={"min-snr": "neyman+min-snr", "neyman+min-snr": "min-snr"})
    assert _agreed(circle, "min-snr", ends, best) == 1e-3
    # A rate at which a run of its own failed is no choice, however good it is for the other.
    del ends["neyman+min-snr"][2e-3]
    ends["min-snr"] = {1e-3: 0.1, 2e-3: 0.0}
    assert _agreed(judged, "neyman+min-snr", ends, best) == 1e-3


@pytest.mark.parametrize(("steps", "short"), [(80, 80), (300, 100), (4000, 1000)])
def test_runs_that_tune_are_a_quarter_long_and_never_very_short(
    tmp_path: Path, steps: int, short: int
) -> None:
    loaded = load_study("fashion16", ["methods=uniform", f"steps={steps}", "tune=1e-3,2e-3"])
    assert {trial.recipe.steps for trial in tuned(loaded, tmp_path, None).trials} == {short}
    assert loaded.tune is not None
    any_length = replace(loaded, tune=replace(loaded.tune, least_steps=1))
    assert {trial.recipe.steps for trial in tuned(any_length, tmp_path, None).trials} == {steps // 4}


def test_a_study_that_does_not_tune_keeps_the_rates_it_was_given(tmp_path: Path) -> None:
    study = replace(load_study("demo"), tune=None, rates={"uniform": 3e-3})
    assert tuned(study, tmp_path, None).of(study).rates == {"uniform": 3e-3}

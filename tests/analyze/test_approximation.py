"""Selections scored on planted rows: what determines y is found, and noise explains nothing."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
import torch
from scipy import stats
from torch import Tensor

from stepwell.analyze.approximation import Approximation, Split, approximation
from stepwell.core.density import centres
from stepwell.core.errors import InvalidParameter

COLUMNS = 40
TELLING = [5, 17, 30]
LONG = Split(queue=200, scored=50, repeats=5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scored(rows: Tensor, y: Tensor, split: Split = LONG, largest: int = 4) -> Approximation:
    return approximation(rows, y, centres(rows.shape[1]), split, largest)


def planted(scales: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> tuple[Tensor, Tensor]:
    """Rows [n, 40] with a sum y that three of the columns determine: the others come in pairs that cancel."""
    rows = torch.zeros(LONG.rows, COLUMNS, dtype=torch.float64)
    others = [column for column in range(COLUMNS) if column not in TELLING]
    rows[:, TELLING] = normal(LONG.rows, 3, seed=1) * torch.tensor(scales).double()
    noise = normal(LONG.rows, len(others) // 2, seed=2)
    rows[:, others[::2][: noise.shape[1]]] = noise
    rows[:, others[1::2][: noise.shape[1]]] = -noise
    return rows, rows.sum(1)


def test_f_and_forward_find_what_determines_the_sum_and_random_does_not() -> None:
    rows, y = planted()
    torch.testing.assert_close(y, rows[:, TELLING].sum(1))
    found = scored(rows, y)
    for selection in ("f", "forward"):
        fit = found.of(selection, 3)
        assert fit.fitted_r2 is not None
        assert fit.fitted_r2.value == pytest.approx(1.0)
        assert fit.correlation.value == pytest.approx(1.0)
        assert fit.same_sign.value == 1.0
        # The mean over S is y / 3, and all 40 timesteps times it is 40 / 3 of y.
        assert fit.r2.value == pytest.approx(1 - (COLUMNS / 3 - 1) ** 2, rel=0.1)
        # Each of three independent columns tells a third of y's variance.
        assert found.of(selection, 1).correlation.value == pytest.approx(math.sqrt(1 / 3), abs=0.15)
    for selection in ("random", "grid"):
        fit = found.of(selection, 3)
        assert fit.fitted_r2 is not None
        assert fit.fitted_r2.high < 0.6, selection


def test_the_loudest_columns_are_a_control_that_does_not_look_at_the_sum() -> None:
    rows, _ = planted()
    rows[:, TELLING] *= 0.5
    quiet = scored(rows, rows.sum(1)).of("variance", 3)
    assert abs(quiet.correlation.value) < 0.25, "what varies most cancels"
    rows[:, TELLING] *= 20
    loud = scored(rows, rows.sum(1)).of("variance", 3)
    assert loud.correlation.value == pytest.approx(1.0)
    times = centres(COLUMNS).tolist()
    assert loud.chosen == (tuple(times[column] for column in TELLING),) * LONG.repeats


def test_a_regression_weighs_what_a_mean_cannot() -> None:
    rows, y = planted((3.0, 1.0, 1.0))
    y = rows[:, 5] - 2 * rows[:, 17] + rows[:, 30]
    fit = scored(rows, y).of("forward", 3)
    assert fit.fitted_r2 is not None
    assert fit.fitted_r2.value == pytest.approx(1.0)
    # Cov(mean, y) = (9 - 2 + 1) / 3, over the deviations sqrt(11) / 3 and sqrt(14).
    assert fit.correlation.value == pytest.approx(8 / math.sqrt(11 * 14), abs=0.1)


def test_noise_explains_nothing_of_later_rows() -> None:
    # 250 later rows, y independent of all columns: z of the pooled correlation fails once in a million,
    # and 4 selections are looked at.
    failure_rate = 1e-6
    bound = stats.norm.isf(failure_rate / 2) / math.sqrt(LONG.repeats * LONG.scored)
    found = scored(normal(LONG.rows, COLUMNS, seed=3), normal(LONG.rows, seed=4))
    for selection in ("f", "forward", "random", "grid"):
        fit = found.of(selection, 3)
        assert abs(fit.correlation.value) < bound, selection
        assert fit.fitted_r2 is not None
        # 4 factors of 200 rows cost 4 / 200 of y's variance, plus what was taken for signal: at most as much
        # as the largest of 40 squared correlations with 200 rows, three times.
        assert -0.3 < fit.fitted_r2.value < bound**2, selection
        assert abs(fit.same_sign.value - 0.5) < bound, selection


def test_all_timesteps_stand_for_themselves() -> None:
    rows = normal(LONG.rows, 6, seed=5)
    found = scored(rows, rows.sum(1), largest=6)
    for selection in ("f", "forward", "random", "grid"):
        fit = found.of(selection, 6)
        assert fit.fitted_r2 is not None
        assert (fit.correlation.value, fit.r2.value, fit.fitted_r2.value) == pytest.approx((1.0, 1.0, 1.0))
    assert found.sizes == (1, 2, 3, 4, 5, 6)


def test_rows_never_choose_and_score_at_once() -> None:
    split = Split(queue=20, scored=7, repeats=4)
    seen = []
    for repeat in range(4):
        chooses, scores = split.parts(repeat)
        assert chooses.stop == scores.start
        assert chooses.stop - chooses.start == 20
        assert chooses.start >= 0
        seen += list(range(scores.start, scores.stop))
    assert seen == list(range(20, split.rows)), "every later row scores once"


def test_what_scores_cannot_change_the_choice() -> None:
    rows, y = normal(LONG.rows, COLUMNS, seed=6), normal(LONG.rows, seed=7)
    later = rows.clone()
    # In the last repeat's scored rows the one column that f chose is replaced by y itself.
    last = LONG.parts(LONG.repeats - 1)[1]
    later[last] = y[last, None]
    assert (
        scored(later, y, largest=1).of("f", 1).correlation.value
        > scored(rows, y, largest=1).of("f", 1).correlation.value + 0.1
    )


def test_with_fewer_rows_than_factors_there_is_no_regression() -> None:
    split = Split(queue=5, scored=4, repeats=3)
    found = scored(normal(split.rows, 8), normal(split.rows), split, largest=8)
    assert found.of("f", 3).fitted_r2 is not None
    assert found.of("f", 4).fitted_r2 is None
    assert json.loads(json.dumps(asdict(found)))["split"] == {"queue": 5, "scored": 4, "repeats": 3}


def test_updates_that_did_nothing_are_no_error() -> None:
    split = Split(queue=5, scored=4, repeats=3)
    found = scored(torch.zeros(split.rows, 8), torch.zeros(split.rows), split)
    assert found.of("f", 1).correlation.value == 0.0
    assert found.helped == 0.0


def test_too_little_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="need 450 rows, and there are 449"):
        scored(normal(449, 4), normal(449))
    with pytest.raises(InvalidParameter, match="up to 9 of 4 timesteps: give 1 to 4"):
        scored(normal(450, 4), normal(450), largest=9)
    for given in ({"queue": 2}, {"scored": 2}, {"repeats": 2}):
        with pytest.raises(InvalidParameter, match="must be a whole number of at least 3"):
            Split(**given)

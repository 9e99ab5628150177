"""The subset of timesteps: F statistics as scikit-learn has them, and the other ways to choose."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter, UnknownName
from stepwell.samplers.beta_policy.decrease import explained, f_statistic, select, spaced

oracle = pytest.importorskip("sklearn.feature_selection")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows_and_sum(rows: int = 20, columns: int = 50, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows whose columns have different spreads, as c_t gives them, and what they add up to."""
    values = normal(rows, columns, seed=seed) * torch.logspace(0, -2, columns, dtype=torch.float64) + 0.3
    return values, values.sum(1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [3, 5, 20])
def test_f_is_that_of_scikit_learn(rows: int, seed: int) -> None:
    values, y = rows_and_sum(rows, seed=seed)
    expected, _ = oracle.f_regression(values.numpy(), y.numpy())
    assert torch.allclose(f_statistic(values, y), torch.as_tensor(expected), rtol=1e-6)


def test_f_by_hand() -> None:
    # Centred: x = (-1, 0, 1), y = (-1, -1, 2): r^2 = 9 / (2 * 6) = 3 / 4, F = 3 with one degree of freedom.
    f = f_statistic(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 1.0, 4.0]))
    assert float(f) == pytest.approx(3)


def test_constant_and_perfect_columns_are_as_in_scikit_learn() -> None:
    values, y = rows_and_sum(10, 6)
    values[:, 1], values[:, 4] = 0.1, -2 * y
    found, (expected, _) = f_statistic(values, y), oracle.f_regression(values.numpy(), y.numpy())
    assert found[1] == 0 == pytest.approx(expected[1], abs=1e-12)
    assert min(float(found[4]), expected[4]) > 1e12
    rest = [0, 2, 3, 5]
    assert torch.allclose(found[rest], torch.as_tensor(expected)[rest], rtol=1e-6)
    assert found.isfinite().all()


def test_the_chosen_are_those_of_scikit_learn() -> None:
    for seed in range(10):
        values, y = rows_and_sum(seed=seed)
        best = oracle.SelectKBest(oracle.f_regression, k=3).fit(values.numpy(), y.numpy())
        assert select(values, y, 3, "f").tolist() == best.get_support(indices=True).tolist()


def test_two_rows_say_nothing_and_the_last_timesteps_win() -> None:
    # No degrees of freedom are left: what the official code does at its first choice.
    values, y = rows_and_sum(2, 10)
    assert f_statistic(values, y).tolist() == [0] * 10
    assert select(values, y, 3, "f").tolist() == [7, 8, 9]


@pytest.mark.parametrize("method", ["f", "forward"])
def test_a_constant_column_is_never_chosen(method: str) -> None:
    values, y = rows_and_sum(12, 6)
    values[:, [0, 2, 5]] = torch.tensor([0.1, 1e6, 0.0], dtype=torch.float64)
    assert select(values, y, 3, method).tolist() == [1, 3, 4]


@pytest.mark.parametrize("method", ["f", "forward", "random", "grid"])
def test_choices_are_rising_distinct_and_survive_what_is_not_finite(method: str) -> None:
    values, y = rows_and_sum(8, 20)
    values[3, 4], values[5, 6], values[:, 9] = torch.nan, torch.inf, torch.nan
    chosen = select(values, values.sum(1), 5, method).tolist()
    assert sorted(set(chosen)) == chosen
    assert len(chosen) == 5
    assert all(0 <= index < 20 for index in chosen)
    assert explained(values, y, torch.tensor(chosen)).isfinite()


def residual(values: Tensor, y: Tensor, columns: tuple[int, ...]) -> float:
    """What least squares with an intercept leaves of y."""
    design = torch.cat([values[:, list(columns)], torch.ones(len(y), 1, dtype=y.dtype)], dim=1)
    fit = design @ torch.linalg.lstsq(design, y[:, None]).solution
    return float((y - fit[:, 0]).square().sum())


@pytest.mark.parametrize("seed", range(5))
def test_forward_takes_what_lowers_the_residual_most(seed: int) -> None:
    values, y = rows_and_sum(15, 12, seed)
    chosen: tuple[int, ...] = ()
    for _ in range(4):
        left = [index for index in range(12) if index not in chosen]
        chosen = (*chosen, min(left, key=lambda index: residual(values, y, (*chosen, index))))
    assert select(values, y, 4, "forward").tolist() == sorted(chosen)


def test_forward_leaves_out_what_is_already_said() -> None:
    # The univariate F takes the same column twice; what they explain together is the difference.
    values = normal(20, 3)
    values = torch.cat([values[:, :1], values[:, :1] * 3, values[:, 1:2], values[:, 2:] / 4], dim=1)
    y = values[:, 0] * 2 + values[:, 2] + values[:, 3]
    assert select(values, y, 2, "f").tolist() == [0, 1]
    chosen = select(values, y, 2, "forward").tolist()
    assert 2 in chosen
    best = max(
        itertools.combinations(range(4), 2), key=lambda pair: float(explained(values, y, torch.tensor(pair)))
    )
    assert explained(values, y, torch.tensor(chosen)) == pytest.approx(
        float(explained(values, y, torch.tensor(best))), abs=1e-9
    )


def test_what_is_explained_is_r_squared() -> None:
    values, y = rows_and_sum(15, 8)
    total = float((y - y.mean()).square().sum())
    for columns in ((0,), (1, 5), (0, 2, 7)):
        expected = 1 - residual(values, y, columns) / total
        assert float(explained(values, y, torch.tensor(columns))) == pytest.approx(expected, abs=1e-9)
    assert float(explained(values, y, torch.arange(8))) == pytest.approx(1)
    twice = torch.cat([values, values[:, :1]], dim=1)
    same = explained(twice, y, torch.tensor([0, 8]))
    assert float(same) == pytest.approx(float(explained(values, y, torch.tensor([0]))), abs=1e-9)


def test_random_choices_are_a_function_of_the_key() -> None:
    values, y = rows_and_sum()
    choices = {key: tuple(select(values, y, 3, "random", key).tolist()) for key in range(50)}
    assert choices[7] == tuple(select(values * 0, y, 3, "random", 7).tolist())
    assert len(set(choices.values())) > 45
    # Each of 50 columns is expected 3 times among 150; all but one missing in 50 draws is far from chance.
    assert len(set(itertools.chain(*choices.values()))) > 40


def test_spaced_choices_lie_in_the_middles_of_equal_parts() -> None:
    values, y = rows_and_sum(4, 50)
    assert select(values, y, 3, "grid").tolist() == spaced(3, 50).tolist() == [8, 25, 41]
    assert spaced(4, 4).tolist() == [0, 1, 2, 3]
    assert spaced(1, 1000).tolist() == [500]


def test_what_cannot_be_chosen_is_refused() -> None:
    values, y = rows_and_sum(4, 5)
    with pytest.raises(InvalidParameter, match="6 of 5"):
        select(values, y, 6, "f")
    with pytest.raises(UnknownName, match="forward"):
        select(values, y, 2, "foward")

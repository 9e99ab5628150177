"""The predicted gain against closed forms: planted gradients, and a linear denoiser of Gaussian data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import stepwell
from stepwell.analyze.gain import Gain, gain
from stepwell.analyze.gradient_rounds import Effort, GradientRounds
from stepwell.core.errors import InvalidParameter, NonFiniteLoss
from stepwell.core.estimates import Estimate, jackknife, t_quantile
from stepwell.core.tick import Tick
from stepwell.objective import Objective
from stepwell.probes.context import ProbeSetup
from stepwell.samplers.gradients import strata_spec

SIZE = 2048
"""Coordinates: a stratum's variance is then known to sqrt(2 / (SIZE x rounds)), under 2 %."""
PROCESS = stepwell.process("linear")
BORDERS = torch.tensor(strata_spec(PROCESS, 20, 1, 8, None, "adam").borders, dtype=torch.float64)
SHARES = BORDERS.diff()


def examples(tick: Tick) -> tuple[Tensor, None]:
    """Standard normal data."""
    return torch.randn(2 * 8, SIZE, generator=tick.generator("data")), None


def setup(loss_at: Callable[..., Tensor], weight: Tensor, weighting: str = "none") -> ProbeSetup:
    optimizer = torch.optim.Adam([weight])
    return ProbeSetup(PROCESS, stepwell.weighting(weighting), loss_at, optimizer, None)


def planted(spread: Tensor, means: Tensor, batch: int = 64, rounds: int = 5) -> Gain:
    """The gain where one example's gradient in stratum i is means[i] + spread[i] x standard normal."""
    weight = torch.nn.Parameter(torch.zeros(SIZE))

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        stratum = torch.searchsorted(BORDERS[1:-1].float(), u, right=True)
        return (means[stratum] + spread.float()[stratum, None] * noise) @ weight

    return gain(GradientRounds(setup(loss_at, weight), examples, Effort(20, rounds, 8)), batch)


def test_planted_gradients_give_the_ratio_that_was_planted() -> None:
    spread = torch.linspace(3.0, 0.2, 20).double()
    direction = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    # |mean|^2 is SIZE x 0.01 within 10 %, and the same in every stratum: nothing lies between them.
    found = planted(spread, (0.1 * direction).expand(20, SIZE))
    variance = float(SHARES @ spread.square())
    ratio = float(SHARES @ spread) ** 2 / variance
    assert found.ratio.value == pytest.approx(ratio, rel=0.02)
    assert found.ratio.low < found.ratio.value < found.ratio.high
    density = 0.8 * spread / (SHARES @ spread) + 0.2
    assert found.ratio_floored.value == pytest.approx(
        float(SHARES @ (spread.square() / density)) / variance, rel=0.02
    )
    assert found.between_share.value < 0.01
    critical = variance * SIZE / float((0.1 * direction).square().sum())
    assert found.critical_batch.value == pytest.approx(critical, rel=0.15)
    noise = critical / (critical + 64)
    assert found.noise_share.value == pytest.approx(noise, abs=0.05)
    assert found.images_ratio.value == pytest.approx(1 - noise * (1 - found.ratio_floored.value), abs=0.05)
    assert found.metric == "plain"
    assert found.spread == pytest.approx((spread / (SHARES @ spread)).tolist(), rel=0.08)
    assert sum(found.shares) == pytest.approx(1.0)


def test_equal_strata_have_nothing_to_gain() -> None:
    found = planted(torch.ones(20), torch.zeros(20, SIZE))
    assert found.ratio.value == pytest.approx(1.0, abs=0.01)
    assert found.ratio_floored.value == pytest.approx(1.0, abs=0.01)
    assert found.images_ratio.value > 0.98


def test_in_batches_far_above_the_critical_one_nothing_is_gained() -> None:
    spread = torch.linspace(0.2, 3.0, 20)
    found = planted(spread, torch.full((20, SIZE), 0.1), batch=10**6)
    assert found.ratio.value < 0.8
    assert found.noise_share.value < 0.01
    assert found.images_ratio.low > 0.99


def test_without_any_mean_gradient_all_is_noise() -> None:
    found = planted(torch.linspace(0.2, 3.0, 20), torch.zeros(20, SIZE))
    assert found.noise_share.high == 1.0
    assert found.critical_batch.high > 10**4
    assert found.images_ratio.low <= found.ratio_floored.value + 0.02


def test_noise_between_strata_is_told_apart() -> None:
    means = torch.randn(20, SIZE, generator=torch.Generator().manual_seed(2))
    found = planted(torch.ones(20), means)
    # Means of independent normals around their own mean: 1 - sum q^2 of their variance.
    around = 1 - float(SHARES.square().sum())
    assert found.between_share.value == pytest.approx(around / (1 + around), rel=0.05)
    assert found.ratio.value == pytest.approx(1.0, abs=0.01)
    critical = (1 + around) / (1 - around)
    noise = critical / (critical + 64)
    assert found.images_ratio.value == pytest.approx(1 - noise * around / (1 + around), abs=0.02)


@pytest.mark.parametrize("weighting", ["none", "min-snr"])
def test_a_linear_denoiser_of_gaussian_data(weighting: str) -> None:
    gains = torch.nn.Parameter(torch.full((SIZE,), 0.5))
    objective = Objective(PROCESS, stepwell.weighting(weighting))

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        return objective(lambda x, time, told: gains * x, x0, noise, u, condition).plain

    found = gain(GradientRounds(setup(loss_at, gains, weighting), examples, Effort(20, 5, 8)), 64)
    # x_u = a x0 + s eps is standard normal with E[x eps] = s, and one coordinate's gradient is
    # 2 w (g x^2 - eps x) / D: mean 2 w (g - s) / D, variance 4 w^2 (2 (g - s)^2 + 1 - s^2) / D^2.
    u = PROCESS.grid()
    w, s = stepwell.weighting(weighting)(PROCESS, u).double(), PROCESS.scales(u)[1].double()
    stratum = torch.searchsorted(BORDERS[1:-1], u, right=True)
    count = torch.bincount(stratum).double()

    def averaged(values: Tensor) -> Tensor:
        return torch.zeros(20, dtype=torch.float64).index_add(0, stratum, values) / count

    mean = averaged(w * (0.5 - s))
    variance = averaged(w**2 * (2 * (0.5 - s) ** 2 + 1 - s**2)) + averaged((w * (0.5 - s)) ** 2) - mean**2
    assert found.ratio.value == pytest.approx(
        float(SHARES @ variance.sqrt()) ** 2 / float(SHARES @ variance), rel=0.04
    )
    signal, within = float(SHARES @ mean) ** 2, float(SHARES @ variance)
    total = within + float(SHARES @ mean.square()) - signal
    assert found.between_share.value == pytest.approx(1 - within / total, abs=0.03)
    assert found.critical_batch.value == pytest.approx(total / signal, rel=0.2)


def test_gradients_are_measured_in_adams_metric_once_there_is_one() -> None:
    weight = torch.nn.Parameter(torch.zeros(SIZE))
    half = torch.arange(SIZE) < SIZE // 2

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        # Early times move the first half of the coordinates, late ones the other, nine times as much.
        moved = torch.where((u < 0.5)[:, None], half * 1.0, ~half * 9.0)
        return (moved * noise) @ weight

    view = setup(loss_at, weight)
    effort = Effort(20, 3, 8)
    assert gain(GradientRounds(view, examples, effort), 64).ratio.value == pytest.approx(25 / 41, rel=0.02)
    view.optimizer.state[weight] = {
        "step": torch.tensor(10**6),
        "exp_avg": torch.zeros(SIZE),
        "exp_avg_sq": torch.where(half, 1.0, 9.0**4),
    }
    found = gain(GradientRounds(view, examples, effort), 64)
    assert found.metric == "adam"
    assert found.ratio.value == pytest.approx(1.0, abs=0.01)


def test_gradients_that_are_not_finite_are_named() -> None:
    weight = torch.nn.Parameter(torch.zeros(SIZE))

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        return torch.where(u > 0.9, torch.nan, 1.0) * (noise @ weight)

    with pytest.raises(NonFiniteLoss, match=r"not finite between 0\.(85|9)"):
        gain(GradientRounds(setup(loss_at, weight), examples, Effort(20, 3, 8)), 64)


def test_the_jackknife_of_a_mean_is_students_interval() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 7.0, 7.5], dtype=torch.float64)
    (found,) = jackknife(lambda rounds: values[rounds].mean()[None], 5)
    low, high = stats.t.interval(0.95, 4, values.mean(), values.std() / 5**0.5)
    assert (found.value, found.low, found.high) == pytest.approx((4.3, low, high), rel=1e-6)


def test_the_jackknife_takes_the_bias_of_a_square_away() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 7.0, 7.5], dtype=torch.float64)
    (found,) = jackknife(lambda rounds: values[rounds].mean().square()[None], 5)
    assert found.value == pytest.approx(float(values.mean().square() - values.var() / 5), rel=1e-6)


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 30])
def test_quantiles_of_students_t(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="rounds must be a whole number of at least 3"):
        Effort(rounds=2)
    with pytest.raises(InvalidParameter, match="too few for an interval"):
        jackknife(lambda rounds: rounds.float(), 2)
    assert Estimate(0.5, -1.0, 2.0).clamped(0, 1) == Estimate(0.5, 0, 1)

"""The gradient's variance and the loss over time against closed forms: linear denoisers of Gaussian data.

x_u = a x0 + s eps has the variance v = a^2 std^2 + s^2 in every coordinate and the covariance s with eps. A
denoiser that says g x errs by y = g x - eps, jointly normal with x: Var y = g^2 v - 2 g s + 1 is the loss,
and Cov(x, y) = g v - s is (Isserlis 1918) all that the gradient's moments need besides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import stepwell
from stepwell.analyze.gradient_rounds import Effort, GradientRounds
from stepwell.analyze.variance import Variance, objectives, variance
from stepwell.core.errors import UnknownName
from stepwell.core.estimates import Estimate
from stepwell.core.tick import Tick
from stepwell.objective import Objective
from stepwell.probes.context import ProbeSetup
from stepwell.samplers.gradients import strata_spec

PROCESS = stepwell.process("linear")
STD, GAIN, IMAGES = 0.5, 0.6, 4
WEIGHTINGS = {"simple": "none", "bound": "vlb"}


class Moments(NamedTuple):
    """Closed forms at times u [n]: of x, of its error y, and of both."""

    vx: Tensor
    vy: Tensor
    cov: Tensor


def moments(u: Tensor) -> Moments:
    a, s = (scale.double() for scale in PROCESS.scales(u))
    v = a**2 * STD**2 + s**2
    return Moments(v, GAIN**2 * v - 2 * GAIN * s + 1, GAIN * v - s)


def measured(
    weight: Tensor,
    size: int,
    effort: Effort,
    denoise: Callable[[Tensor], Tensor],
    metric: str = "plain",
    optimizer: torch.optim.Optimizer | None = None,
) -> Variance:
    objective = Objective(PROCESS)

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        return objective(lambda x, time, told: denoise(x), x0, noise, u, condition).plain

    def examples(tick: Tick) -> tuple[Tensor, None]:
        return STD * torch.randn(2 * IMAGES, size, generator=tick.generator("data")), None

    optimizer = optimizer or torch.optim.Adam([weight])
    # Its own weighting must not matter: both objectives are measured, whatever is trained.
    view = ProbeSetup(PROCESS, stepwell.weighting("min-snr"), loss_at, optimizer, None)
    return variance(GradientRounds(view, examples, effort), metric)


def averaged(values: Tensor, strata: int) -> Tensor:
    """[K]: means over the timesteps of every stratum, from values [1000] or [1000, ...]."""
    borders = torch.tensor(strata_spec(PROCESS, strata, 1, IMAGES, None, "plain").borders[1:-1])
    stratum = torch.searchsorted(borders.double(), PROCESS.grid().double(), right=True)
    return torch.stack([values[stratum == k].mean(0) for k in range(strata)])


def assert_estimates(
    found: tuple[Estimate, ...], truth: Tensor, rounds: int, failure_rate: float = 1e-6
) -> None:
    """Student's t of the rounds in every stratum; all together fail as often as said if they are right."""
    values = torch.tensor([each.value for each in found], dtype=torch.float64)
    margins = torch.tensor([each.high - each.value for each in found], dtype=torch.float64)
    t = (values - truth) / (margins / stats.t.ppf(0.975, rounds - 1))
    probability = 2 * stats.t.sf(float(t.abs().max()), rounds - 1) * len(truth)
    worst = int(t.abs().argmax())
    assert probability > failure_rate, (
        f"stratum {worst}: {values[worst]:.4g} where {truth[worst]:.4g} was expected; p = {probability:.1e}"
    )


def test_the_trace_for_a_gain_for_each_coordinate() -> None:
    size, effort = 512, Effort(5, 40, IMAGES)
    gains = torch.nn.Parameter(torch.full((size,), GAIN))
    found = measured(gains, size, effort, lambda x: gains * x)
    u = PROCESS.grid()
    of = moments(u)
    for name, known in WEIGHTINGS.items():
        w = stepwell.weighting(known)(PROCESS, u).double()
        # One coordinate's gradient is 2 w x y / D: mean 2 w cov / D, and Var(x y) = vx vy + cov^2.
        mean = 2 * w * of.cov / size
        within = 4 * w**2 * (of.vx * of.vy + of.cov**2) / size**2
        # Its time is drawn too: variance of the mean over the stratum comes on top.
        trace = size * (averaged(within + mean**2, 5) - averaged(mean, 5) ** 2)
        curve = found.curves[name]
        assert_estimates(curve.variance, trace, effort.rounds)
        assert_estimates(curve.loss, averaged(w * of.vy, 5), effort.rounds)
        values = torch.tensor([each.value for each in curve.variance])
        assert torch.allclose(values, trace.float(), rtol=0.25), "the test above has power"
    assert found.gradients == 2 * IMAGES * 40
    assert (found.metric, found.missing) == ("plain", {})
    assert list(found.curves) == ["simple", "bound"]


def test_the_trace_for_a_whole_matrix() -> None:
    size, effort = 24, Effort(5, 60, IMAGES)
    matrix = torch.nn.Parameter(GAIN * torch.eye(size))
    found = measured(matrix, size, effort, lambda x: x @ matrix.T)
    of = moments(PROCESS.grid())
    # The gradient is 2 y x^T / D. E|y|^2 |x|^2 = D^2 vx vy + 2 D cov^2, and its mean is 2 cov I / D.
    second = 4 / size**2 * (size**2 * of.vx * of.vy + 2 * size * of.cov**2)
    trace = averaged(second, 5) - size * averaged(2 * of.cov / size, 5) ** 2
    assert_estimates(found.curves["simple"].variance, trace, effort.rounds)
    assert_estimates(found.curves["simple"].loss, averaged(of.vy, 5), effort.rounds)
    with pytest.raises(AssertionError, match="was expected"):
        assert_estimates(found.curves["simple"].variance, 1.5 * trace, effort.rounds)


def test_adams_metric_scales_what_is_measured() -> None:
    size, effort = 64, Effort(4, 3, IMAGES)
    gains = torch.nn.Parameter(torch.full((size,), GAIN))
    plain = measured(gains, size, effort, lambda x: gains * x, "adam")
    assert plain.metric == "plain", "there is no such metric before the first update"
    optimizer = torch.optim.Adam([gains], eps=0.0)
    optimizer.state[gains] = {
        "step": torch.tensor(10**6),
        "exp_avg": torch.zeros(size),
        "exp_avg_sq": torch.full((size,), 16.0),
    }
    scaled = measured(gains, size, effort, lambda x: gains * x, "adam", optimizer)
    assert scaled.metric == "adam"
    for one, other in zip(plain.curves["simple"].variance, scaled.curves["simple"].variance, strict=True):
        assert other.value == pytest.approx(one.value / 4, rel=1e-4)
    unscaled = measured(gains, size, effort, lambda x: gains * x, "plain", optimizer)
    assert unscaled == plain


@pytest.mark.parametrize("name", ["edm", "flow"])
def test_processes_without_a_bound_say_so(name: str) -> None:
    found, missing = objectives(stepwell.process(name))
    assert list(found) == ["simple"]
    assert missing["bound"].endswith(".")


@pytest.mark.parametrize("name", ["linear", "cosine", "quadratic"])
def test_the_bound_has_the_papers_own_weights(name: str) -> None:
    """c_t = beta^2 / (2 sigma^2 alpha (1 - abar)), sigma^2 = beta (Kim et al. 2025, Eq. 7)."""
    process = stepwell.process(name)
    abar = process.alphas_cumprod().numpy()
    alpha = abar / np.append(1.0, abar[:-1])
    own = (1 - alpha) ** 2 / (2 * (1 - alpha) * alpha * (1 - abar))
    found = objectives(process)[0]["bound"](process, process.grid()).numpy()
    np.testing.assert_allclose(found, own, rtol=1e-9)
    capped = objectives(process, cap=1.0)[0]["bound"](process, process.grid()).numpy()
    np.testing.assert_allclose(capped, np.minimum(own, 1), rtol=1e-9)
    # Of cosine's last twentieth a cap leaves one part in 87.
    assert own[950:].mean() / capped[950:].mean() == pytest.approx(87 if name == "cosine" else 1, abs=0.5)


def test_numbers_are_plain() -> None:
    gains = torch.nn.Parameter(torch.full((8,), GAIN))
    found = asdict(measured(gains, 8, Effort(2, 3, IMAGES), lambda x: gains * x))
    assert found["borders"] == (0.0, 0.5, 1.0)
    assert set(found["curves"]["bound"]["loss"][0]) == {"value", "low", "high"}


def test_an_unknown_metric_is_refused() -> None:
    gains = torch.nn.Parameter(torch.full((8,), GAIN))
    with pytest.raises(UnknownName, match="not a known metric"):
        measured(gains, 8, Effort(2, 3, IMAGES), lambda x: gains * x, "fisher")

"""The variance-exploding SDE against the formulas of Song et al. 2021 (Eq. 29 and 31)."""

from __future__ import annotations

import math

import pytest
import torch
from cases import OF_FLOWS

import stepwell
from stepwell.catalogue.find import names
from stepwell.core.errors import InvalidParameter, UnknownName, Unsupported

INSIDE = torch.linspace(0.0, 1.0, 101, dtype=torch.float64)


def published_sigma(t):
    """For images in [0, 1], CIFAR-10."""
    return 0.01 * (50 / 0.01) ** t


def test_the_perturbation_kernel_is_the_papers_at_our_scale_of_images():
    """x' = (x + 1) / 2 lies in [0, 1]: its noise is half of ours."""
    signal, noise = stepwell.process("ve").scales(INSIDE)
    assert torch.equal(signal, torch.ones_like(signal))
    torch.testing.assert_close(noise / 2, published_sigma(INSIDE))
    given = stepwell.process("ve", sigma_min=0.01, sigma_max=50.0)
    torch.testing.assert_close(given.sigma(INSIDE), published_sigma(INSIDE))


def test_the_network_is_told_the_logarithm_of_the_papers_sigma_and_sees_x_as_it_is():
    x0 = torch.randn(101, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = torch.randn(101, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    process = stepwell.process("ve")
    problem = process.corrupt(x0, noise, INSIDE)
    torch.testing.assert_close(problem.time, published_sigma(INSIDE).log())
    torch.testing.assert_close(problem.input, x0 + process.sigma(INSIDE)[:, None] * noise)
    torch.testing.assert_close(problem.target, noise)
    assert float(stepwell.process("ve", time_scale=16.0).time(INSIDE)[-1]) == pytest.approx(16 * math.log(50))


def test_no_weighting_is_the_papers_loss():
    """sigma^2 |score + eps / sigma|^2 of a score -output / sigma, as NCSN++ scales it."""
    x0, noise, output = torch.randn(3, 101, 5, generator=torch.Generator().manual_seed(0)).double()
    process = stepwell.process("ve")
    sigma = process.sigma(INSIDE)[:, None]
    ours = (output - process.corrupt(x0, noise, INSIDE).target).square().mean(1)
    torch.testing.assert_close(ours, (sigma**2 * (-output / sigma + noise / sigma) ** 2).mean(1))


def test_times_and_log_snrs_can_be_inverted():
    process = stepwell.process("ve")
    torch.testing.assert_close(process.unit_time(process.time(INSIDE)), INSIDE)
    torch.testing.assert_close(process.at_log_snr(process.log_snr(INSIDE)), INSIDE)
    torch.testing.assert_close(process.log_snr(INSIDE), -2 * process.sigma(INSIDE).log())


def test_log_snr_rate_is_the_numerical_derivative():
    process, step = stepwell.process("ve", sigma_max=7.0), 1e-4
    slope = (process.log_snr(INSIDE + step) - process.log_snr(INSIDE - step)) / (2 * step)
    torch.testing.assert_close(process.log_snr_rate(INSIDE), slope, rtol=1e-9, atol=0)


def test_likelihood_is_g_squared_over_twice_the_variance():
    """g = sigma sqrt(2 ln(sigma_max / sigma_min)): the same weight everywhere."""
    process = stepwell.process("ve")
    sigma = process.sigma(INSIDE)
    g_squared = sigma**2 * 2 * math.log(5000)
    weights = stepwell.weighting("likelihood")(process, INSIDE)
    torch.testing.assert_close(weights, g_squared / (2 * sigma**2))
    torch.testing.assert_close(process.bound_coefficient(INSIDE, "fixed-small"), weights / 1000)
    x0 = stepwell.process("ve", prediction="x0")
    torch.testing.assert_close(stepwell.weighting("likelihood")(x0, INSIDE), weights / sigma**2)


@pytest.mark.parametrize("name", ["flow", "edm"])
def test_likelihood_elsewhere(name):
    process, u = stepwell.process(name), torch.linspace(0.002, 0.998, 99, dtype=torch.float64)
    sigma = process.sigma(u)
    # -d log-SNR / du / 2 is 1 / (t (1 - t)) of a flow, whose eps loss is (1 - t)^2 of velocity's;
    # of EDM ln(80 / 0.002), and d^2 / (sigma^2 + d^2).
    expected = (1 - sigma) / sigma if name == "flow" else math.log(40_000) * 0.25 / (sigma**2 + 0.25)
    torch.testing.assert_close(stepwell.weighting("likelihood")(process, u), expected)


def test_likelihood_of_a_flow_is_held_near_the_data():
    flow, weight = stepwell.process("flow", prediction="eps"), stepwell.weighting("likelihood")
    u = torch.tensor([0.0, 1e-4, 1 / 1001, 1e-2], dtype=torch.float64)
    # Noise of a thousandth of the signal is t = 1 / 1001.
    held = 1 / (u[2] * (1 - u[2]))
    torch.testing.assert_close(weight(flow, u)[:3], held.expand(3))
    looser = stepwell.weighting("likelihood", largest_snr=1e8)(flow, u)
    assert (looser[:2] > held).all()


@pytest.mark.parametrize("given", ["linear", "cosine"])
def test_likelihood_is_of_continuous_time(given):
    with pytest.raises(Unsupported, match="use vlb"):
        stepwell.weighting("likelihood")(stepwell.process(given), INSIDE)
    with pytest.raises(InvalidParameter, match="largest_snr"):
        stepwell.weighting("likelihood", largest_snr=0)


@pytest.mark.parametrize("weighting", [name for name in names("weighting") if name not in OF_FLOWS])
@pytest.mark.parametrize("prediction", ["eps", "x0"])
def test_weights_are_defined_over_all_time(weighting, prediction):
    process = stepwell.process("ve", prediction=prediction)
    weights = stepwell.weighting(weighting)(process, torch.tensor([0.0, 0.5, 1 - 2.0**-24]))
    assert weights.isfinite().all()
    assert (weights >= 0).all()


@pytest.mark.parametrize("parameters", [{"sigma_min": 0}, {"sigma_max": 0.001}, {"time_scale": 0}])
def test_values_that_cannot_work_are_errors(parameters):
    with pytest.raises(InvalidParameter, match=next(iter(parameters))):
        stepwell.process("ve", **parameters)


def test_a_prediction_that_it_has_not():
    with pytest.raises(UnknownName, match="eps, x0"):
        stepwell.process("ve", prediction="v")

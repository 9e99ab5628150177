"""The variance-preserving SDE against the formulas of Song et al. 2021 (Eq. 29 and 33) and DDPM's chain."""

from __future__ import annotations

import math

import pytest
import torch
from cases import OF_FLOWS

import stepwell
from stepwell.catalogue.find import names
from stepwell.core.density import centres
from stepwell.core.errors import InvalidParameter, UnknownName

INSIDE = torch.linspace(0.0, 1.0, 101, dtype=torch.float64)
CUT_OFF = 1e-5


def own_time(u):
    return CUT_OFF + (1 - CUT_OFF) * u


def test_the_perturbation_kernel_is_the_papers():
    t = own_time(INSIDE)
    log_mean = -(t**2) * (20 - 0.1) / 4 - t * 0.1 / 2
    signal, noise = stepwell.process("vp").scales(INSIDE)
    torch.testing.assert_close(signal, torch.exp(log_mean))
    torch.testing.assert_close(noise, torch.sqrt(1 - torch.exp(2 * log_mean)), rtol=1e-9, atol=0)


def test_the_kernel_solves_the_sde():
    """d signal / dt = -beta / 2 signal, and d noise^2 / dt = beta (1 - noise^2)."""
    process, step = stepwell.process("vp"), 1e-5
    u = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    (before, less), (after, more), (signal, noise) = (process.scales(u + k) for k in (-step, step, 0))
    beta = 0.1 + 19.9 * own_time(u)
    per_unit = 2 * step * (1 - CUT_OFF)
    torch.testing.assert_close((after - before) / per_unit, -beta / 2 * signal, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close((more**2 - less**2) / per_unit, beta * (1 - noise**2), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(process.beta(u), beta)


def test_the_ends():
    ends = stepwell.process("vp").log_snr(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert float(ends[0]) == pytest.approx(-math.log(math.expm1(1e-6 + 19.9e-10 / 2)))
    assert float(ends[1]) == pytest.approx(-math.log(math.expm1(10.05)))


def test_the_network_is_told_999_t_and_sees_x_as_it_is():
    x0 = torch.randn(101, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = torch.randn(101, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    problem = stepwell.process("vp").corrupt(x0, noise, INSIDE)
    torch.testing.assert_close(problem.time, 999 * own_time(INSIDE))
    torch.testing.assert_close(problem.input, problem.xt)
    torch.testing.assert_close(problem.target, noise)
    assert float(stepwell.process("vp", time_scale=1.0).time(INSIDE)[-1]) == 1


def test_times_and_log_snrs_can_be_inverted():
    for process in (stepwell.process("vp"), stepwell.process("vp", beta_min=3.0, beta_max=3.0, cut_off=0.01)):
        torch.testing.assert_close(process.unit_time(process.time(INSIDE)), INSIDE, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(process.at_log_snr(process.log_snr(INSIDE)), INSIDE, rtol=1e-9, atol=1e-12)
        signal, noise = process.scales(INSIDE)
        torch.testing.assert_close(process.log_snr(INSIDE), 2 * (signal / noise).log(), rtol=1e-7, atol=1e-9)


def test_log_snr_rate_is_the_numerical_derivative():
    process, step = stepwell.process("vp"), 1e-6
    u = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    slope = (process.log_snr(u + step) - process.log_snr(u - step)) / (2 * step)
    torch.testing.assert_close(process.log_snr_rate(u), slope, rtol=1e-6, atol=0)


def test_float32_keeps_the_data_end():
    """1 - exp(-1e-6) would have one digit."""
    u = torch.tensor([0.0, 1e-6, 1e-3])
    exact = stepwell.process("vp").scales(u.double())[1]
    torch.testing.assert_close(stepwell.process("vp").scales(u)[1].double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("timesteps", [1000, 4000])
def test_it_is_the_limit_of_ddpms_linear_schedule(timesteps):
    """beta_t = beta(t / T) / T: between the two are terms of order 1 / T."""
    discrete, process = stepwell.process("linear", timesteps=timesteps), stepwell.process("vp")
    u = centres(timesteps)[timesteps // 100 :: timesteps // 100]
    off = (discrete.log_snr(u) - process.log_snr(u)).abs().max()
    assert off < 100 / timesteps


# The bound.


def test_likelihood_is_g_squared_over_twice_the_variance():
    process = stepwell.process("vp")
    t = own_time(INSIDE)
    g_squared = 0.1 + 19.9 * t
    variance = -torch.expm1(-0.1 * t - 19.9 * t**2 / 2)
    expected = (1 - CUT_OFF) * g_squared / (2 * variance)
    torch.testing.assert_close(stepwell.weighting("likelihood")(process, INSIDE), expected)
    # It is stated on eps, whatever the network predicts.
    v = stepwell.process("vp", prediction="v")
    torch.testing.assert_close(stepwell.weighting("likelihood")(v, INSIDE), expected * (1 - variance))


@pytest.mark.parametrize("variance", ["fixed-large", "fixed-small"])
def test_t_times_the_discrete_weight_comes_to_likelihood(variance):
    """The difference is of order 1 / T: four times the timesteps leave a quarter of it."""
    process, off = stepwell.process("vp"), {}
    for timesteps in (1000, 4000):
        u = centres(timesteps)[timesteps // 20 :: timesteps // 20]
        weights = stepwell.weighting("vlb", variance=variance, cap=None)(
            stepwell.process("linear", timesteps=timesteps), u
        )
        ratio = timesteps * weights / stepwell.weighting("likelihood")(process, u)
        off[timesteps] = float((ratio - 1).abs().max())
    assert off[1000] < 0.03
    assert off[4000] == pytest.approx(off[1000] / 4, rel=0.15)


def test_the_bound_coefficient_adds_up_to_likelihood():
    process = stepwell.process("vp")
    grid = process.grid()
    per_thousandth = process.bound_coefficient(grid, "fixed-large")
    torch.testing.assert_close(per_thousandth * 1000, stepwell.weighting("likelihood")(process, grid))
    # So vlb, and with it every learner whose target is the bound, works here.
    torch.testing.assert_close(stepwell.weighting("vlb")(process, grid), per_thousandth)


def test_vlb_has_no_cap_in_continuous_time():
    """Its mean weight is half the change of log-SNR over all time, in thousandths; a cap of 1 leaves 88 %."""
    process = stepwell.process("vp")
    # Even in ln t, where the weight is nearly 1 / t: the trapezium rule is exact to 1e-6.
    t = torch.logspace(math.log10(CUT_OFF), 0, 40_001, dtype=torch.float64)
    u = (t - CUT_OFF) / (1 - CUT_OFF)

    def mean(**cap):
        return float(torch.trapezoid(stepwell.weighting("vlb", **cap)(process, u), u))

    log_snr = [-math.log(math.expm1(0.1 * time + 19.9 * time**2 / 2)) for time in (CUT_OFF, 1.0)]
    exact = (log_snr[0] - log_snr[1]) / 2000
    assert mean() == pytest.approx(exact, rel=1e-5)
    assert mean(cap=None) == mean()
    assert mean(cap=1.0) == pytest.approx(0.88 * exact, rel=0.01), "a cap that is asked for acts everywhere"


@pytest.mark.parametrize("weighting", [name for name in names("weighting") if name not in OF_FLOWS])
@pytest.mark.parametrize("prediction", ["eps", "v", "x0"])
def test_weights_are_defined_over_all_time(weighting, prediction):
    process = stepwell.process("vp", prediction=prediction)
    weights = stepwell.weighting(weighting)(process, torch.tensor([0.0, 0.5, 1 - 2.0**-24]))
    assert weights.isfinite().all()
    assert (weights >= 0).all()


@pytest.mark.parametrize(
    "parameters", [{"beta_min": 0}, {"beta_max": 0.05}, {"cut_off": 0}, {"cut_off": 0.7}, {"time_scale": -1}]
)
def test_values_that_cannot_work_are_errors(parameters):
    with pytest.raises(InvalidParameter, match=next(iter(parameters))):
        stepwell.process("vp", **parameters)


def test_a_prediction_that_it_has_not():
    with pytest.raises(UnknownName, match="eps, v, x0"):
        stepwell.process("vp", prediction="velocity")

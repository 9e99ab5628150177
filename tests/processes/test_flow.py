"""Rectified flow."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

import stepwell
from stepwell.catalogue.find import names
from stepwell.core.density import centres
from stepwell.core.errors import InvalidParameter, UnknownName, Unsupported

SHIFTS = (0.5, 1.0, 3.0)
INSIDE = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_straight_line_from_data_to_noise(shift):
    process = stepwell.process("flow", shift=shift)
    t = shift * INSIDE / (1 + (shift - 1) * INSIDE)
    signal, noise = process.scales(INSIDE)
    torch.testing.assert_close(signal, 1 - t)
    torch.testing.assert_close(noise, t)
    torch.testing.assert_close(process.time(INSIDE), 1000 * t)


@pytest.mark.parametrize(("prediction", "mix"), [("velocity", (-1, 1)), ("eps", (0, 1)), ("x0", (1, 0))])
def test_targets_are_what_the_predictions_say(prediction, mix):
    x0, noise = torch.randn(2, 99, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = stepwell.process("flow", prediction=prediction).corrupt(x0, noise, INSIDE)
    torch.testing.assert_close(problem.target, mix[0] * x0 + mix[1] * noise)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("time_scale", [1.0, 1000.0])
def test_unit_time_inverts_time(shift, time_scale):
    process = stepwell.process("flow", shift=shift, time_scale=time_scale)
    torch.testing.assert_close(process.unit_time(process.time(INSIDE)), INSIDE)


@pytest.mark.parametrize("shift", SHIFTS)
def test_at_log_snr_inverts_log_snr(shift):
    process = stepwell.process("flow", shift=shift)
    torch.testing.assert_close(process.at_log_snr(process.log_snr(INSIDE)), INSIDE)


@pytest.mark.parametrize("shift", SHIFTS)
def test_log_snr_rate_is_the_numerical_derivative(shift):
    process = stepwell.process("flow", shift=shift)
    step = 1e-6
    slope = (process.log_snr(INSIDE + step) - process.log_snr(INSIDE - step)) / (2 * step)
    torch.testing.assert_close(process.log_snr_rate(INSIDE), slope, rtol=1e-6, atol=0)


def test_a_shift_moves_log_snr_by_a_constant():
    moved = stepwell.process("flow", shift=3.0).log_snr(INSIDE) - stepwell.process("flow").log_snr(INSIDE)
    torch.testing.assert_close(moved, torch.full_like(moved, -2 * math.log(3)))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("timesteps", [1, 2, 10, 1000])
def test_discrete_flows_run_from_one_step_to_pure_noise(shift, timesteps):
    process = stepwell.process("flow", shift=shift, timesteps=timesteps)
    u = process.grid()
    t = torch.arange(1, timesteps + 1, dtype=torch.float64) / timesteps
    torch.testing.assert_close(process.sigma(u), shift * t / (1 + (shift - 1) * t))
    assert float(process.sigma(u)[-1]) == pytest.approx(1)
    torch.testing.assert_close(process.unit_time(process.time(u)), u)


@pytest.mark.parametrize("shift", SHIFTS)
def test_discrete_flows_find_the_timestep_of_a_log_snr(shift):
    process = stepwell.process("flow", shift=shift, timesteps=1000)
    u = process.grid()[:-1]
    torch.testing.assert_close(process.at_log_snr(process.log_snr(u)), u)


@pytest.mark.parametrize("shift", SHIFTS)
def test_log_snr_rate_of_a_discrete_flow_is_the_numerical_derivative(shift):
    process = stepwell.process("flow", shift=shift, timesteps=1000)
    u = process.grid()
    log_snr = process.log_snr(u)
    slope = (log_snr[2:] - log_snr[:-2]) * 500
    inside = slice(50, 950)
    torch.testing.assert_close(process.log_snr_rate(u)[1:-1][inside], slope[inside], rtol=5e-3, atol=0)


@pytest.mark.parametrize("timesteps", [10, 1000])
def test_discrete_flows_take_the_right_timestep_just_below_a_border(timesteps):
    process = stepwell.process("flow", timesteps=timesteps)
    border = (torch.arange(1, timesteps + 1, dtype=torch.float64) / timesteps).float()
    # A step of 2^-22 below the border, since the border itself is rounded to float32.
    sigma = process.sigma(border - 2.0**-22)
    torch.testing.assert_close(sigma, border, rtol=0, atol=1e-7)


# Weights.


def test_weights_on_velocity_are_those_on_eps_times_the_square_of_the_signal():
    flow, eps = stepwell.process("flow"), stepwell.process("flow", prediction="eps")
    for name in ("min-snr", "soft-min-snr", "p2", "debiased", "speed"):
        weighting = stepwell.weighting(name)
        torch.testing.assert_close(weighting(flow, INSIDE), weighting(eps, INSIDE) * (1 - INSIDE) ** 2)


def test_min_snr_on_velocity_in_closed_form():
    t = INSIDE
    wanted = torch.minimum(5 * t**2, (1 - t) ** 2)
    torch.testing.assert_close(stepwell.weighting("min-snr")(stepwell.process("flow"), t), wanted)


@pytest.mark.parametrize("weighting", [name for name in names("weighting") if name != "vlb"])
@pytest.mark.parametrize("prediction", ["velocity", "eps", "x0"])
@pytest.mark.parametrize("timesteps", [None, 1000])
def test_weights_are_defined_from_nearly_data_to_pure_noise(weighting, prediction, timesteps):
    process = stepwell.process("flow", prediction=prediction, timesteps=timesteps)
    if weighting == "likelihood" and timesteps:
        pytest.skip("the bound in continuous time")
    # The ends of what a draw can be in float32.
    u = torch.tensor([2.0**-24, 1e-3, 0.5, 1 - 2.0**-24])
    weights = stepwell.weighting(weighting)(process, u)
    assert weights.isfinite().all()
    assert (weights >= 0).all()


def test_the_variational_bound_has_no_meaning_for_a_flow():
    with pytest.raises(Unsupported, match="min-snr"):
        stepwell.weighting("vlb")(stepwell.process("flow"), INSIDE)


# References.


@pytest.mark.parametrize("reference", ["uniform", "logit-normal"])
def test_references_integrate_to_one(reference):
    density = stepwell.process("flow", reference=reference).reference
    u = centres(100_000)
    assert float(density.pdf(u).mean()) == pytest.approx(1, abs=1e-9)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(density.cdf(ends), ends)


def test_the_logit_normal_reference_is_sd3s():
    density = stepwell.process("flow", reference="logit-normal").reference
    logit = torch.logit(INSIDE)
    wanted = torch.tensor(stats.norm.pdf(logit)) / (INSIDE * (1 - INSIDE))
    torch.testing.assert_close(density.pdf(INSIDE), wanted)
    torch.testing.assert_close(density.cdf(INSIDE), torch.tensor(stats.norm.cdf(logit)))
    torch.testing.assert_close(density.quantile(density.cdf(INSIDE)), INSIDE)


# Parameters.


@pytest.mark.parametrize("parameters", [{"shift": 0}, {"shift": -1}, {"timesteps": 0}, {"time_scale": 0}])
def test_values_that_cannot_work_are_errors(parameters):
    with pytest.raises(InvalidParameter, match=next(iter(parameters))):
        stepwell.process("flow", **parameters)


def test_an_unknown_reference_is_an_error():
    with pytest.raises(UnknownName, match="logit-normal"):
        stepwell.process("flow", reference="logit")


def test_shifting_twice_is_an_error():
    with pytest.raises(Unsupported, match="would shift by 9"):
        stepwell.sampler("uniform", stepwell.process("flow", shift=3.0), shift=3.0)

"""EDM's preconditioning and its reference density, against the formulas of Karras et al. 2022, Table 1."""

from __future__ import annotations

import math

import pytest
import torch
from cases import OF_FLOWS
from scipy import stats

import stepwell
from stepwell.catalogue.find import names
from stepwell.core.density import centres
from stepwell.core.errors import InvalidParameter, Unsupported

INSIDE = torch.linspace(0.001, 0.999, 101, dtype=torch.float64)
DATA = (0.5, 1.0, 0.3)


def sigmas(sigma_min=0.002, sigma_max=80.0):
    return sigma_min * (sigma_max / sigma_min) ** INSIDE


def examples():
    return torch.randn(2, len(INSIDE), 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("data", DATA)
def test_the_network_sees_and_hears_what_karras_says(data):
    process = stepwell.process("edm", sigma_data=data)
    x0, noise = examples()
    sigma = sigmas()
    problem = process.corrupt(x0, noise, INSIDE)
    x = x0 + sigma[:, None] * noise
    c_in, c_noise = 1 / torch.sqrt(sigma**2 + data**2), torch.log(sigma) / 4
    torch.testing.assert_close(problem.xt, x)
    torch.testing.assert_close(problem.input, c_in[:, None] * x)
    torch.testing.assert_close(problem.time, c_noise)


@pytest.mark.parametrize("data", DATA)
def test_recover_is_karras_denoiser(data):
    process = stepwell.process("edm", sigma_data=data)
    x, output = examples()
    sigma = sigmas()[:, None]
    c_skip = data**2 / (sigma**2 + data**2)
    c_out = sigma * data / torch.sqrt(data**2 + sigma**2)
    torch.testing.assert_close(process.recover(output, x, INSIDE), c_skip * x + c_out * output)


@pytest.mark.parametrize("data", DATA)
def test_the_target_has_unit_variance_for_data_of_sigma_data(data):
    # The design rule behind c_out: p^2 data^2 + q^2 = 1 at every sigma.
    p, q = stepwell.process("edm", sigma_data=data).target_mix(INSIDE)
    torch.testing.assert_close((p * data) ** 2 + q**2, torch.ones_like(p))


@pytest.mark.parametrize("data", DATA)
def test_no_weighting_is_karras_weighted_loss(data):
    process = stepwell.process("edm", sigma_data=data)
    x0, noise = examples()
    problem = process.corrupt(x0, noise, INSIDE)
    sigma = sigmas()
    output = torch.randn(
        problem.target.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    ours = ((output - problem.target) ** 2).mean(1) * stepwell.weighting("none")(process, INSIDE)
    denoised = process.recover(output, problem.xt, INSIDE)
    weight = (sigma**2 + data**2) / (sigma * data) ** 2
    torch.testing.assert_close(ours, weight * ((denoised - x0) ** 2).mean(1), rtol=1e-7, atol=0)


@pytest.mark.parametrize("data", DATA)
def test_soft_min_snr_is_k_diffusions(data):
    # (sigma sigma_d)^2 / (sigma^2 + sigma_d^2)^2 on EDM's target is soft-Min-SNR with gamma 1 / sigma_d^2.
    process = stepwell.process("edm", sigma_data=data)
    sigma = sigmas()
    wanted = (sigma * data) ** 2 / (sigma**2 + data**2) ** 2
    torch.testing.assert_close(stepwell.weighting("soft-min-snr", gamma=data**-2)(process, INSIDE), wanted)


def test_unit_time_inverts_time():
    process = stepwell.process("edm")
    torch.testing.assert_close(process.unit_time(process.time(INSIDE)), INSIDE)


def test_at_log_snr_inverts_log_snr():
    process = stepwell.process("edm")
    torch.testing.assert_close(process.log_snr(INSIDE), -2 * torch.log(sigmas()))
    torch.testing.assert_close(process.at_log_snr(process.log_snr(INSIDE)), INSIDE)


def test_log_snr_rate_is_the_numerical_derivative():
    process = stepwell.process("edm", sigma_min=0.01, sigma_max=5.0)
    step = 1e-4
    slope = (process.log_snr(INSIDE + step) - process.log_snr(INSIDE - step)) / (2 * step)
    torch.testing.assert_close(process.log_snr_rate(INSIDE), slope, rtol=1e-9, atol=0)


def test_time_covers_all_sigmas():
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = stepwell.process("edm", sigma_min=0.01, sigma_max=5.0).sigma(ends)
    torch.testing.assert_close(found, torch.tensor([0.01, 5.0], dtype=torch.float64))


@pytest.mark.parametrize(("mean", "std"), [(-1.2, 1.2), (-0.4, 1.0), (-0.8, 1.6)])
def test_the_reference_is_the_truncated_normal_of_ln_sigma(mean, std):
    process = stepwell.process("edm", mean=mean, std=std)
    start, span = math.log(0.002), math.log(80 / 0.002)
    low, high = (start - mean) / std, (start + span - mean) / std
    wanted = stats.truncnorm(low, high, loc=mean, scale=std)
    log_sigma = torch.log(sigmas()).numpy()
    torch.testing.assert_close(process.reference.pdf(INSIDE), torch.tensor(wanted.pdf(log_sigma)) * span)
    torch.testing.assert_close(
        process.reference.cdf(INSIDE), torch.tensor(wanted.cdf(log_sigma)), rtol=0, atol=1e-12
    )
    v = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    quantile = process.sigma(process.reference.quantile(v)).log()
    torch.testing.assert_close(quantile, torch.tensor(wanted.ppf(v)), rtol=0, atol=1e-9)


def test_the_reference_integrates_to_one():
    density = stepwell.process("edm").reference
    assert float(density.pdf(centres(10_000)).mean()) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("weighting", [name for name in names("weighting") if name not in ("vlb", *OF_FLOWS)])
def test_weights_are_defined_over_all_time(weighting):
    weights = stepwell.weighting(weighting)(stepwell.process("edm"), torch.tensor([0.0, 0.5, 1 - 2.0**-24]))
    assert weights.isfinite().all()
    assert (weights >= 0).all()


def test_the_variational_bound_has_no_meaning_for_edm():
    with pytest.raises(Unsupported, match="min-snr"):
        stepwell.weighting("vlb")(stepwell.process("edm"), INSIDE)


@pytest.mark.parametrize(
    "parameters",
    [{"sigma_min": 0}, {"sigma_max": 0.001}, {"sigma_data": -1}, {"std": 0}, {"mean": math.nan}],
)
def test_values_that_cannot_work_are_errors(parameters):
    with pytest.raises(InvalidParameter, match=next(iter(parameters))):
        stepwell.process("edm", **parameters)


def test_a_reference_with_no_mass_in_the_range_is_an_error():
    with pytest.raises(Unsupported, match="next to no mass"):
        stepwell.process("edm", mean=40.0, std=0.1)

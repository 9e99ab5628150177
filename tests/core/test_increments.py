"""SpeeD's increments in closed form, and the areas of a process that follow from them."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

import stepwell
from stepwell.catalogue import build
from stepwell.core.errors import InvalidParameter, UnknownName, Unsupported
from stepwell.core.increments import areas, increments
from stepwell.core.sampler import pmf

SCHEDULES = ("linear", "cosine", "quadratic", "scaled-linear")


def kept(process):
    return process.scales(process.grid())[0] ** 2


@pytest.mark.parametrize("name", SCHEDULES)
def test_fresh_increments_are_speeds_theorem(name):
    process = stepwell.process(name)
    abar = kept(process)
    alpha = abar[1:] / abar[:-1]
    found = increments(process)
    torch.testing.assert_close(found.variance, 2 - abar[:-1] * (1 + alpha))
    torch.testing.assert_close(found.mean, (alpha.sqrt() - 1) * abar[:-1].sqrt(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.u, torch.arange(1, 1000, dtype=torch.float64) / 1000)


@pytest.mark.parametrize("name", SCHEDULES)
def test_chain_increments_of_a_variance_preserving_process(name):
    # x' - x = (sqrt(alpha) - 1) x + sqrt(beta) eps, and x has variance 1 - abar given x0.
    process = stepwell.process(name)
    abar = kept(process)
    alpha = abar[1:] / abar[:-1]
    wanted = (alpha.sqrt() - 1) ** 2 * (1 - abar[:-1]) + (1 - alpha)
    torch.testing.assert_close(increments(process, "chain").variance, wanted, rtol=1e-8, atol=1e-14)


def test_chain_increments_are_those_of_a_forward_chain():
    # 19 variances and 19 means, each of 200 000 independent chains: fails once in a million if right.
    timesteps, chains, start, failure_rate = 20, 200_000, 1.5, 1e-6
    process = stepwell.process("linear", timesteps=timesteps)
    abar = kept(process)
    alpha = abar / torch.cat([torch.ones(1, dtype=torch.float64), abar[:-1]])
    generator = torch.Generator().manual_seed(0)
    found = increments(process, "chain")
    x = torch.full((chains,), start, dtype=torch.float64)
    worst = 1.0
    for t in range(timesteps):
        fresh = torch.randn(chains, generator=generator, dtype=torch.float64)
        after = alpha[t].sqrt() * x + (1 - alpha[t]).sqrt() * fresh
        if t > 0:
            step, variance = after - x, float(found.variance[t - 1])
            scaled = float(step.var()) / variance * (chains - 1)
            z = float(step.mean() - found.mean[t - 1] * start) / math.sqrt(variance / chains)
            chi = stats.chi2(chains - 1)
            worst = min(worst, 2 * chi.cdf(scaled), 2 * chi.sf(scaled), 2 * stats.norm.sf(abs(z)))
        x = after
    assert worst > failure_rate / (2 * (timesteps - 1))


def test_fresh_increments_are_those_of_two_training_examples():
    samples, failure_rate, t = 400_000, 1e-6, 7
    process = stepwell.process("cosine", timesteps=20)
    u = process.grid()
    generator = torch.Generator().manual_seed(0)
    x0 = torch.full((samples,), 0.5, dtype=torch.float64)
    one, two = (
        process.corrupt(
            x0, torch.randn(samples, generator=generator, dtype=torch.float64), u[i].expand(samples)
        )
        for i in (t, t + 1)
    )
    scaled = float((two.xt - one.xt).var() / increments(process).variance[t]) * (samples - 1)
    chi = stats.chi2(samples - 1)
    assert 2 * min(chi.cdf(scaled), chi.sf(scaled)) > failure_rate


def test_edm_adds_noise_and_keeps_the_signal():
    process = stepwell.process("edm")
    sigma = process.sigma(process.grid())
    fresh, chain = (increments(process, noise) for noise in ("fresh", "chain"))
    assert (fresh.mean == 0).all()
    torch.testing.assert_close(fresh.variance, sigma[1:] ** 2 + sigma[:-1] ** 2)
    torch.testing.assert_close(chain.variance, sigma[1:] ** 2 - sigma[:-1] ** 2, rtol=1e-9, atol=0)


def test_flow_increments():
    process = stepwell.process("flow")
    t = process.grid()
    fresh, chain = (increments(process, noise) for noise in ("fresh", "chain"))
    torch.testing.assert_close(fresh.mean, torch.full_like(fresh.mean, -1e-3))
    torch.testing.assert_close(fresh.variance, t[1:] ** 2 + t[:-1] ** 2)
    # Markov: x' = r x + fresh noise, whose variance is t'^2 - r^2 t^2.
    ratio = (1 - t[1:]) / (1 - t[:-1])
    wanted = (ratio - 1) ** 2 * t[:-1] ** 2 + t[1:] ** 2 - ratio**2 * t[:-1] ** 2
    torch.testing.assert_close(chain.variance, wanted)
    assert (chain.variance > 0).all()


def test_an_unknown_kind_of_noise_is_an_error():
    with pytest.raises(UnknownName, match="chain, fresh"):
        increments(stepwell.process("linear"), "frsh")


# Areas.


@pytest.mark.parametrize("timesteps", [250, 1000, 4000])
def test_linear_converges_at_the_same_share_of_time_for_any_number_of_timesteps(timesteps):
    # SpeeD's code says 0.7. A border falls between two timesteps, so it is known to one of them.
    found = areas(stepwell.process("linear", timesteps=timesteps)).converges_from
    assert found == pytest.approx(0.675, abs=0.005 + 1 / timesteps)


@pytest.mark.parametrize("name", SCHEDULES)
def test_areas_are_scale_free(name):
    few, many = (areas(stepwell.process(name, timesteps=count)) for count in (250, 4000))
    assert few.accelerates_until == pytest.approx(many.accelerates_until, abs=0.005)
    assert few.converges_from == pytest.approx(many.converges_from, abs=0.01)


def test_schedules_that_destroy_faster_converge_earlier():
    found = [areas(stepwell.process(name)) for name in ("linear", "quadratic", "cosine")]
    assert all(0 < areas.accelerates_until < areas.converges_from < 1 for areas in found)
    for early, late in ((0, 1), (1, 2)):
        assert found[early].accelerates_until < found[late].accelerates_until
        assert found[early].converges_from < found[late].converges_from


def test_acceleration_ends_where_the_variance_grows_fastest():
    # The variance is 2 - 2 abar in the limit, and abar = cos^2 falls fastest in the middle.
    assert areas(stepwell.process("cosine")).accelerates_until == pytest.approx(0.496, abs=0.002)


TAU = {
    # signal^2 / (signal^2 + noise^2) = 1 / 100 (DDPM's abar at its border), solved for unit time by hand.
    "flow": 1 / (1 + 99**-0.5),
    "flow:shift=3": 1 / (1 + 3 * 99**-0.5),
    "edm": math.log(99**0.5 / 0.002) / math.log(80 / 0.002),
    "ve": math.log(99**0.5 / 0.02) / math.log(100 / 0.02),
}


@pytest.mark.parametrize("name", TAU)
def test_any_process_converges_where_one_percent_is_signal(name):
    process = build.as_process(name)
    # Borders are thousandths of time, and the threshold is a share of the last variance, 2 at most.
    assert areas(process).converges_from == pytest.approx(TAU[name], abs=0.002)
    masses = pmf(stepwell.sampler("speed", process, tau="auto", dual=False), process)
    suppressed = masses < 0.5 / len(masses)
    assert float(suppressed.double().mean()) == pytest.approx(1 - TAU[name], abs=0.002)
    torch.testing.assert_close(masses[~suppressed], 5 * masses[-1].expand(int((~suppressed).sum())))


def test_increments_at_unit_variance_are_those_of_scaled_images():
    process = stepwell.process("edm", sigma_min=1 / 80, sigma_max=80)
    sigma = process.sigma(process.grid())
    share = sigma**2 / (1 + sigma**2)
    found = increments(process, unit_variance=True)
    torch.testing.assert_close(found.variance, share[1:] + share[:-1])
    torch.testing.assert_close(found.mean, (1 - share).sqrt().diff())


@pytest.mark.parametrize("name", ["edm:sigma_max=2", "linear:timesteps=3"])
def test_tau_auto_is_refused_where_it_would_suppress_nothing(name):
    process = build.as_process(name)
    with pytest.raises(Unsupported, match=r"tau=auto: .* converges at .* such as tau=0\.7"):
        stepwell.sampler("speed", process, tau="auto")
    with pytest.raises(Unsupported, match="tau=auto"):
        stepwell.weighting("speed", tau="auto")(process, process.grid())


@pytest.mark.parametrize("timesteps", [1, 2, 3])
def test_processes_too_short_for_areas_accelerate_throughout(timesteps):
    assert areas(stepwell.process("linear", timesteps=timesteps)).converges_from == 1


def test_a_lower_threshold_converges_earlier():
    process = stepwell.process("linear")
    assert areas(process, 0.9).converges_from < areas(process).converges_from
    with pytest.raises(InvalidParameter, match="converged"):
        areas(process, 1.5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_tau_auto_suppresses_from_the_convergence_area_on(name):
    process = stepwell.process(name)
    sampler = stepwell.sampler("speed", process, tau="auto", suppression=4.0, dual=False)
    masses = pmf(sampler, process)
    early = process.grid() < areas(process).converges_from
    assert 0 < int(early.sum()) < 1000
    torch.testing.assert_close(masses / masses[-1], torch.where(early, 4.0, 1.0).double())


@pytest.mark.parametrize("name", SCHEDULES)
def test_tau_auto_weighs_the_convergence_area_by_one(name):
    process = stepwell.process(name)
    weights = stepwell.weighting("speed", tau="auto")(process, process.grid())
    late = process.grid() >= areas(process).converges_from
    assert (weights[late] == 1).all()
    assert (weights[~late] <= 0.6).all()

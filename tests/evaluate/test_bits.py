"""Bits per dimension of normal data under the best denoiser are their closed form; estimates are unbiased."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import OptimalDenoiser
from scipy import stats

import stepwell
from stepwell.bound import decoder_nll, prior_kl, step_kl
from stepwell.core.errors import InvalidParameter, UnknownName, Unsupported
from stepwell.evaluate.bands import fixed_noise
from stepwell.evaluate.bits import Bits, bits_per_dimension
from stepwell.processes.discrete import DiscreteProcess

STD, COUNT, DIMENSIONS = 0.25, 2000, 16
SIGMAS = 6  # fewer than one failure by chance in 10^8 comparisons


def images(count=COUNT, dimensions=DIMENSIONS):
    """Normal data, rounded to 256 levels."""
    x0 = STD * torch.randn(count, dimensions, generator=torch.Generator().manual_seed(2))
    return ((x0 + 1) * 127.5).round().clamp(0, 255) / 127.5 - 1


def closed_form(process, variance):
    """The expected diffusion term in nats per dimension, and its standard error over COUNT images.

    The error on x0 at t is r_t x0 + n_t eps_t, normal with variance e_t, and |error|^2 has the factor f_t.
    Any two timesteps share x0, so the variance of the sum over t is that of all pairs.
    """
    u = process.grid()[1:]
    a, s = process.scales(u)
    gain = a * STD**2 / (a**2 * STD**2 + s**2)
    error = (STD * s) ** 2 / (a**2 * STD**2 + s**2)
    x0 = torch.ones(len(u), 1, dtype=torch.float64)
    problem = process.corrupt(x0, torch.zeros_like(x0), u)
    perfect = step_kl(process, x0, problem.xt, problem.target, u, variance)
    # The answer of one who takes x_t = a for noise alone: x0 = 0, off by exactly 1.
    blind = (process.target_mix(u)[1] * a / s)[:, None]
    factor = step_kl(process, x0, problem.xt, blind, u, variance) - perfect
    shared = torch.outer((1 - gain * a) * STD, (1 - gain * a) * STD)
    shared.diagonal().copy_(error)
    spread = 2 * (torch.outer(factor, factor) * shared**2).sum() / (COUNT * DIMENSIONS)
    return float((perfect + factor * error).sum()), math.sqrt(float(spread))


@pytest.mark.parametrize("variance", ["fixed-large", "fixed-small"])
@pytest.mark.parametrize(
    ("schedule", "prediction"), [("linear", "eps"), ("cosine", "v"), ("cosine", "x0"), ("quadratic", "eps")]
)
def test_the_diffusion_term_is_its_closed_form(schedule, prediction, variance):
    process = stepwell.process(schedule, prediction=prediction, timesteps=60)
    found = bits_per_dimension(
        OptimalDenoiser(process, STD), process, images(), variance=variance, clip=False, batch=COUNT
    )
    expected, error = closed_form(process, variance)
    # Rounding to levels moves the data's variance by (2 / 255)^2 / 12, a share of 8e-5.
    assert abs(found.diffusion * math.log(2) - expected) < SIGMAS * error + 1e-4 * expected
    assert error < 0.01 * expected
    assert found.total == pytest.approx(found.decoder + found.diffusion + found.prior, rel=1e-12)


def test_the_decoder_and_prior_terms_are_means_over_images():
    process, x0 = stepwell.process("linear", timesteps=50), images(300)
    best, u = OptimalDenoiser(process, STD), torch.full((300,), 0.01)
    found = bits_per_dimension(best, process, x0, seed=9)
    problem = process.corrupt(x0, fixed_noise(x0, 9, "bits", "decoder"), u)
    decoder = decoder_nll(process, x0, problem.xt, best(problem.input, problem.time), clip=True)
    unit = DIMENSIONS * math.log(2)
    assert found.decoder == pytest.approx(float(decoder.mean()) / unit, rel=1e-6)
    assert found.prior == pytest.approx(float(prior_kl(process, x0).mean()) / unit)


def test_the_bound_of_normal_data_is_near_its_entropy():
    # Bits of N(0, STD^2) at 256 levels; the bound of the best denoiser is known to lie within 0.2 bits of it.
    entropy = math.log2(STD * math.sqrt(2 * math.pi * math.e) * 255 / 2)
    process = stepwell.process("cosine", prediction="v", timesteps=400)
    found = bits_per_dimension(OptimalDenoiser(process, STD), process, images(500), batch=500)
    assert entropy < found.total < entropy + 0.2


def test_a_sampled_sum_is_unbiased():
    # A network that is told x0 and misses eps by 0.5, more for brighter images, loses the same whatever the
    # noise: only the timesteps are random.
    process, x0 = stepwell.process("linear", timesteps=40), images(3, 4)

    def told(input, time, condition):
        a, s = (scale[:, None] for scale in process.scales(process.unit_time(time)))
        return (input - a * condition) / s + 0.5 + condition.mean(1, keepdim=True)

    def diffusion(**sampled):
        return bits_per_dimension(told, process, x0, x0, clip=False, **sampled).diffusion

    exact = diffusion()
    found = torch.tensor([diffusion(timesteps=3, seed=seed) for seed in range(400)])
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - exact) < 5 * error, "fails by chance once in 10^6"
    assert 0 < error < 0.02 * exact
    # Three timesteps of each image, drawn independently, would spread by this much.
    u = process.grid()[1:]
    data = x0.double().repeat_interleave(len(u), 0)
    problem = process.corrupt(data, torch.ones_like(data), u.repeat(3))
    output = told(problem.input, problem.time, data)
    terms = step_kl(process, data, problem.xt, output, u.repeat(3)).reshape(3, -1) / (4 * math.log(2))
    assert float(terms.sum()) / 3 == pytest.approx(exact, rel=1e-5)
    independent = math.sqrt(float((39 * terms).var(1, correction=0).sum()) / 3) / 3
    assert float(found.std()) < independent


def test_the_sum_of_all_timesteps_is_the_exact_one():
    process, x0 = stepwell.process("linear", timesteps=12), images(20)
    best = OptimalDenoiser(process, STD)
    exact = bits_per_dimension(best, process, x0)
    assert bits_per_dimension(best, process, x0, timesteps=11) == exact
    assert bits_per_dimension(best, process, x0, timesteps=5000) == exact
    assert bits_per_dimension(best, process, x0, timesteps=4) != exact


def test_many_images_make_an_estimate_nearly_exact():
    process, x0 = stepwell.process("linear"), images(2000)
    best = OptimalDenoiser(process, STD)
    few = bits_per_dimension(best, process, x0, timesteps=20, batch=2000)
    expected, _ = closed_form(process, "fixed-large")
    assert few.diffusion * math.log(2) == pytest.approx(expected, rel=0.03)


def test_the_same_seed_is_the_same_number_whatever_the_batch():
    process, x0 = stepwell.process("linear", timesteps=20), images(30)
    best = OptimalDenoiser(process, STD)
    first = bits_per_dimension(best, process, x0, timesteps=5, seed=3)
    assert bits_per_dimension(best, process, x0, timesteps=5, seed=3) == first
    other = bits_per_dimension(best, process, x0, timesteps=5, seed=3, batch=7)
    assert other == pytest.approx(first, rel=1e-6)
    assert bits_per_dimension(best, process, x0, timesteps=5, seed=4) != first


def test_conditions_reach_the_network_with_their_images():
    process = stepwell.process("linear", timesteps=8)

    def network(input, time, condition):
        assert len(condition) == len(input) == len(time)
        return torch.zeros_like(input)

    assert isinstance(bits_per_dimension(network, process, images(10), torch.arange(10), batch=4), Bits)


@pytest.mark.parametrize("name", ["flow", "edm"])
def test_continuous_processes_have_no_bound(name):
    with pytest.raises(Unsupported, match="discrete chain"):
        bits_per_dimension(lambda *_: None, stepwell.process(name), images(2))


def test_what_cannot_be_computed_says_why():
    zero_snr = stepwell.process("linear", zero_terminal_snr=True)
    with pytest.raises(Unsupported, match="predict v or x0"):
        bits_per_dimension(lambda *_: None, zero_snr, images(2))
    process = stepwell.process("linear")
    with pytest.raises(UnknownName, match="fixed-small"):
        bits_per_dimension(lambda *_: None, process, images(2), variance="medium")
    with pytest.raises(InvalidParameter, match="variance=learned needs a network that predicts one"):
        bits_per_dimension(OptimalDenoiser(process, STD), process, images(2), variance="learned")
    with pytest.raises(InvalidParameter, match="reaches 2"):
        bits_per_dimension(lambda *_: None, process, 2 * torch.ones(2, 3))
    with pytest.raises(InvalidParameter, match="timesteps"):
        bits_per_dimension(OptimalDenoiser(process, STD), process, images(2), timesteps=0)


def test_one_timestep_is_all_decoder():
    process = DiscreteProcess(torch.tensor([0.9]))
    found = bits_per_dimension(OptimalDenoiser(process, STD), process, images(4))
    assert found.diffusion == 0
    assert math.isfinite(found.total)


class WithVariance:
    """A network that also predicts where the log-variance lies, differently at every pixel and t."""

    def __init__(self, process):
        self.best = OptimalDenoiser(process, STD)

    def __call__(self, input, time, condition):
        fraction = torch.sin(7 * input + time[:, None])
        return torch.cat([self.best(input, time), fraction], dim=1)


def improved_diffusion_bits(process, x0, seed, clip):
    """calc_bpd_loop of improved-diffusion with learned sigmas, transcribed in float64; our noise, exact CDFs.

    _vb_terms_bpd: normal_kl to q's posterior for t > 0, at t = 0 the discretised decoder, both with
    model_log_variance = frac log beta_t + (1 - frac) posterior_log_variance_clipped, frac = (v + 1) / 2.
    """
    abar = process.alphas_cumprod().numpy()
    before = np.append(1.0, abar[:-1])
    betas = 1 - abar / before
    posterior_variance = betas * (1 - before) / (1 - abar)
    clipped = np.log(np.append(posterior_variance[1], posterior_variance[1:]))
    on_x0, on_xt = betas * np.sqrt(before) / (1 - abar), (1 - before) * np.sqrt(1 - betas) / (1 - abar)
    network, x = WithVariance(process), x0.numpy().astype(np.float64)
    terms = []
    for t in range(len(abar)):
        noise = fixed_noise(x0, seed, "bits", t - 1 if t else "decoder").numpy()
        xt = (np.sqrt(abar[t]) * x + np.sqrt(1 - abar[t]) * noise).astype(np.float32)
        output = network(torch.from_numpy(xt), torch.full((len(x),), t), None).double().numpy()
        eps, v = np.split(output, 2, axis=1)
        predicted = (xt - np.sqrt(1 - abar[t]) * eps) / np.sqrt(abar[t])
        predicted = predicted.clip(-1, 1) if clip else predicted
        frac = (v + 1) / 2
        log_variance = frac * np.log(betas[t]) + (1 - frac) * clipped[t]
        true_mean, mean = (on_x0[t] * one + on_xt[t] * xt for one in (x, predicted))
        kl = 0.5 * (
            log_variance
            - clipped[t]
            - 1
            + np.exp(clipped[t] - log_variance)
            + (true_mean - mean) ** 2 * np.exp(-log_variance)
        )
        upper, lower = (
            stats.norm.cdf((x - mean + by) * np.exp(-log_variance / 2)) for by in (1 / 255, -1 / 255)
        )
        mass = np.where(x < -0.999, upper, np.where(x > 0.999, 1 - lower, upper - lower))
        terms.append((kl if t else -np.log(mass)).mean() / np.log(2))
    return terms[0], sum(terms[1:])


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_learned_variance_is_that_of_the_reverse_step_and_the_decoder(schedule, clip):
    process, x0 = stepwell.process(schedule, timesteps=30), images(50)
    found = bits_per_dimension(WithVariance(process), process, x0, seed=4, clip=clip)
    decoder, diffusion = improved_diffusion_bits(process, x0, 4, clip)
    assert found.decoder == pytest.approx(decoder, rel=1e-5)
    assert found.diffusion == pytest.approx(diffusion, rel=1e-5)
    assert (
        bits_per_dimension(WithVariance(process), process, x0, seed=4, clip=clip, variance="learned") == found
    )
    fixed = bits_per_dimension(OptimalDenoiser(process, STD), process, x0, seed=4, clip=clip)
    large = bits_per_dimension(WithVariance(process), process, x0, seed=4, clip=clip, variance="fixed-large")
    assert large == fixed

"""The terms of the bound equal their closed forms, and bound the likelihood where that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from cases import case
from oracles import optimal_output
from published import assert_printed
from scipy import stats
from torch.distributions import Normal, kl_divergence

import stepwell
from stepwell.bound import BIN_WIDTH, decoder_nll, discretised_nll, predicted_x0, prior_kl, step_kl
from stepwell.core.errors import UnknownName
from stepwell.processes.discrete import DiscreteProcess

STD = 0.25
LEVELS = torch.linspace(-1, 1, 256, dtype=torch.float64)

# shared/methods.md 2.8, as Kim et al.'s code computes it: bits per dimension and unit of squared error.
PRINTED_TIMESTEPS = (0, 1, 100, 500, 999)
# The constant of t = 0 is 0.
PRINTED_FACTORS = "1.32293203 0.39341152 0.01442151 0.00794887 0.01472197"
PRINTED_CONSTANTS = "0.1751248 1.169098e-4 2.6522e-7 2.447e-13"


def problem_at(process, timesteps, shape=(3, 4), dtype=torch.float64):
    """One task per timestep, and an output that is off by a tenth or so."""
    generator = torch.Generator().manual_seed(1)
    count = len(timesteps)
    x0 = torch.rand(count, *shape, generator=generator, dtype=dtype) * 2 - 1
    noise = torch.randn(count, *shape, generator=generator, dtype=dtype)
    u = process.unit_time(torch.tensor(timesteps)).double()
    problem = process.corrupt(x0, noise, u)
    return x0, u, problem, problem.target + 0.1 * torch.randn(count, *shape, generator=generator, dtype=dtype)


def reverse_steps(process, variance):
    """Posterior and reverse variance, and the factors of x0 and x_t in q's mean [T] (Ho et al., Eq. 7)."""
    signal, noise = process.scales(process.grid())
    kept, lost = signal**2, noise**2
    before = torch.cat([torch.ones(1, dtype=torch.float64), kept[:-1]])
    betas = 1 - kept / before
    posterior = betas * (1 - before) / lost
    posterior[0] = posterior[1]
    reverse = posterior.clone()
    if variance == "fixed-large":
        reverse[1:] = betas[1:]
    return posterior, reverse, betas * before.sqrt() / lost, (1 - betas).sqrt() * (1 - before) / lost


def test_kl_of_eps_prediction_is_the_published_line():
    process = stepwell.process("linear")
    x0, u, problem, output = problem_at(process, PRINTED_TIMESTEPS)
    unit = 12 * math.log(2)
    constant = step_kl(process, x0, problem.xt, problem.target, u) / unit
    assert constant[0] < 1e-25
    assert_printed(constant[1:], PRINTED_CONSTANTS)
    error = (output - problem.target).square().mean((1, 2))
    assert_printed((step_kl(process, x0, problem.xt, output, u) / unit - constant) / error, PRINTED_FACTORS)


@pytest.mark.parametrize("variance", ["fixed-large", "fixed-small"])
@pytest.mark.parametrize("prediction", ["eps", "v", "x0"])
@pytest.mark.parametrize(("schedule", "timesteps"), [("linear", 1000), ("cosine", 1000), ("cosine", 8)])
def test_kl_is_that_of_two_normals(schedule, timesteps, prediction, variance):
    process = stepwell.process(schedule, timesteps=timesteps, prediction=prediction)
    steps = (0, 1, timesteps // 2, timesteps - 2, timesteps - 1)
    x0, u, problem, output = problem_at(process, steps)
    found = step_kl(process, x0, problem.xt, output, u, variance)
    predicted = process.recover(output, problem.xt, u)
    every = reverse_steps(process, variance)
    for row, t in enumerate(steps):
        posterior, reverse, on_x0, on_xt = (values[t] for values in every)
        true = Normal(on_x0 * x0[row] + on_xt * problem.xt[row], posterior.sqrt())
        model = Normal(on_x0 * predicted[row] + on_xt * problem.xt[row], reverse.sqrt())
        torch.testing.assert_close(found[row], kl_divergence(true, model).sum(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("prediction", ["eps", "v", "x0"])
@pytest.mark.parametrize("variance", ["fixed-large", "fixed-small"])
def test_kl_of_float32_tasks_is_that_of_float64_ones(variance, prediction):
    # Cosine's last beta is clipped: c_999 = 499.5 and x0 is recovered by dividing by 5e-5.
    process = stepwell.process("cosine", prediction=prediction)
    x0, u, problem, output = problem_at(process, (1, 500, 998, 999), dtype=torch.float32)
    single = step_kl(process, x0, problem.xt, output, u.float(), variance)
    double = step_kl(process, x0.double(), problem.xt.double(), output.double(), u, variance)
    assert single.dtype == torch.float64
    torch.testing.assert_close(single, double, rtol=0, atol=0)


def test_clipping_helps_where_x0_is_inside_and_bounds_cosines_last_term():
    process = stepwell.process("cosine")
    x0, u, problem, output = problem_at(process, (1, 500, 999))
    clipped = step_kl(process, x0, problem.xt, output, u, clip=True)
    assert (clipped <= step_kl(process, x0, problem.xt, output, u)).all()
    assert clipped[-1] < 1e-4
    assert predicted_x0(process, problem.xt, output, u, clip=True).abs().max() <= 1


@pytest.mark.parametrize("variance", ["fixed-large", "fixed-small"])
def test_zero_terminal_snr_is_finite_for_v(variance):
    process = stepwell.process("linear", prediction="v", zero_terminal_snr=True)
    x0, u, problem, output = problem_at(process, (998, 999))
    assert torch.isfinite(step_kl(process, x0, problem.xt, output, u, variance)).all()
    assert (prior_kl(process, x0) == 0).all()


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("timesteps", [5, 1000])
def test_prior_is_the_kl_to_a_standard_normal(schedule, timesteps):
    process = stepwell.process(schedule, timesteps=timesteps)
    x0 = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(2, 3, 4)
    signal, noise = (scale[-1] for scale in process.scales(process.grid()))
    # kl_divergence cancels where it is nearly 0.
    expected = kl_divergence(Normal(signal * x0, noise), Normal(0.0, 1.0)).sum((1, 2))
    torch.testing.assert_close(prior_kl(process, x0), expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("log_variance", [-14.0, -10.0, -4.0, 0.0, 3.0])
@pytest.mark.parametrize("mean", [-3.0, -1.0, 0.0, 0.3, 1.2])
def test_the_decoder_sums_to_one_over_all_levels(mean, log_variance):
    nll = discretised_nll(LEVELS, torch.tensor(mean), torch.tensor(log_variance, dtype=torch.float64))
    assert torch.isfinite(nll).all()
    assert float(torch.exp(-nll).sum()) == pytest.approx(1, abs=1e-12)


def test_the_decoder_is_exact_in_both_tails():
    scale = 0.0074
    mean, log_variance = torch.tensor(0.1), torch.tensor(2 * math.log(scale), dtype=torch.float64)
    found = discretised_nll(LEVELS, mean, log_variance)
    lower = (LEVELS - BIN_WIDTH / 2 - float(mean)) / scale
    upper = lower + BIN_WIDTH / scale
    # In its own tail each bin is nearly all of what lies beyond its inner border.
    above = lower + upper > 0
    inner, outer = torch.where(above, lower, -upper), torch.where(above, upper, -lower)
    log_beyond = [stats.norm.logsf(border.numpy()) for border in (inner, outer)]
    log_beyond[1][[0, -1]] = -np.inf
    expected = -(log_beyond[0] + np.log(-np.expm1(log_beyond[1] - log_beyond[0])))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-9, atol=0)
    assert found[0] > 1e4, "a value 150 standard deviations away has a finite price, not a floor"


def test_the_decoders_variance_is_the_posteriors_of_the_second_step():
    process = stepwell.process("linear")
    x0, _, problem, output = problem_at(process, (0, 0))
    posterior = reverse_steps(process, "fixed-small")[0][0]
    predicted = process.recover(output, problem.xt, torch.zeros(2, dtype=torch.float64))
    expected = discretised_nll(x0, predicted, posterior.log()).sum((1, 2))
    torch.testing.assert_close(decoder_nll(process, x0, problem.xt, output), expected)


def test_a_chain_of_one_step_has_a_decoder():
    process = DiscreteProcess(torch.tensor([0.5]))
    x0, _, problem, output = problem_at(process, (0,))
    assert torch.isfinite(decoder_nll(process, x0, problem.xt, output)).all()


def test_an_unknown_variance_is_named():
    process = stepwell.process("linear")
    x0, u, problem, output = problem_at(process, (1,))
    with pytest.raises(UnknownName, match="fixed-large"):
        step_kl(process, x0, problem.xt, output, u, "learned")


# Normal data and the denoiser that is best for it: every step is linear, so the chain's likelihood is known.


def expected_terms(process, x0, x0_mass, variance):
    """The expected decoder, steps [T - 1] and prior in nats of scalar data: exact, by Gauss-Hermite."""

    def mean(term, u, nodes):
        points, weights = np.polynomial.hermite_e.hermegauss(nodes)
        data, noise = (
            grid.reshape(-1, 1) for grid in torch.meshgrid(x0, torch.tensor(points), indexing="ij")
        )
        mass = torch.outer(x0_mass, torch.tensor(weights / weights.sum())).ravel()
        times = u.expand(len(data))
        xt = process.corrupt(data, noise, times).xt
        return float((mass * term(data, xt, optimal_output(process, xt, times, STD), times)).sum())

    def decode(data, xt, output, _):
        return decoder_nll(process, data, xt, output)

    def step(data, xt, output, u):
        return step_kl(process, data, xt, output, u, variance)

    steps = [mean(step, u, nodes=2) for u in process.grid()[1:]]  # quadratic in the noise
    prior = float((x0_mass * prior_kl(process, x0[:, None])).sum())
    return mean(decode, process.grid()[0], nodes=32), sum(steps), prior


def reverse_spread(process, variance):
    """The variance of the reverse chain's x at t = 0, one step before the decoder, and of what it decodes."""
    signal, noise = process.scales(process.grid())
    best = signal * STD**2 / (signal**2 * STD**2 + noise**2)
    _, reverse, on_x0, on_xt = reverse_steps(process, variance)
    spread = 1.0
    for t in range(len(signal) - 1, 0, -1):
        spread = float((on_x0[t] * best[t] + on_xt[t]) ** 2 * spread + reverse[t])
    return spread, float(best[0] ** 2 * spread + reverse[0])


@pytest.mark.parametrize("variance", [case("fixed-large", quick=True), case("fixed-small", quick=False)])
def test_the_chain_of_steps_closes_on_the_kl_of_its_end(variance):
    # Steps and prior bound KL(q(x at t = 0 | x0) || p); with even steps of log-SNR the gap falls as 1 / T.
    nodes, weights = np.polynomial.hermite_e.hermegauss(2)
    gaps = []
    for timesteps in (20, 200, 2000):
        process = DiscreteProcess(torch.sigmoid(torch.linspace(8, -12, timesteps, dtype=torch.float64)))
        x0, mass = STD * torch.tensor(nodes), torch.tensor(weights / weights.sum())
        _, steps, prior = expected_terms(process, x0, mass, variance)
        spread, _ = reverse_spread(process, variance)
        signal, noise = (float(scale[0]) for scale in process.scales(process.grid()))
        ratio = (noise**2 + (signal * STD) ** 2) / spread
        gaps.append(steps + prior - (math.log(spread / noise**2) + ratio - 1) / 2)
    assert all(gap > 0 for gap in gaps)
    assert gaps[2] < 0.02
    assert gaps[1] / gaps[2] == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize(
    ("schedule", "variance"),
    [
        case("linear", "fixed-large", quick=False),
        case("linear", "fixed-small", quick=True),
        case("cosine", "fixed-large", quick=True),
        case("cosine", "fixed-small", quick=False),
    ],
)
def test_the_whole_bound_lies_above_the_likelihood_of_the_levels(schedule, variance):
    log_std = torch.tensor(2 * math.log(STD), dtype=torch.float64)
    data = torch.exp(-discretised_nll(LEVELS, torch.zeros(()), log_std))
    entropy = float(torch.special.entr(data).sum())
    for timesteps, slack in ((4, 0.5), (20, 2.0), (1000, 0.1 if variance == "fixed-large" else 0.6)):
        process = stepwell.process(schedule, timesteps=timesteps)
        bound = sum(expected_terms(process, LEVELS, data, variance))
        decoded = torch.tensor(reverse_spread(process, variance)[1], dtype=torch.float64)
        likelihood = float((data * discretised_nll(LEVELS, torch.zeros(()), decoded.log())).sum())
        assert entropy <= likelihood <= bound <= likelihood + slack
    assert likelihood - entropy < 1e-3

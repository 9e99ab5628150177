"""Schedules, weights and densities equal the tables of shared/methods.md to their printed digits."""

from __future__ import annotations

import math

import published
import pytest
import torch
from published import MASTER_TIMESTEPS, SCHEDULES, SPEED_TIMESTEPS, assert_printed

import stepwell
from stepwell.core.density import Uniform, edges, rounded
from stepwell.core.errors import InvalidParameter
from stepwell.core.sampler import pmf
from stepwell.processes import schedules
from stepwell.samplers import speed
from stepwell.samplers.static import beta_cdf

SIX = 6
BETAS = {"linear": schedules.linear, "cosine": schedules.cosine, "quadratic": schedules.quadratic}


def weights(name, schedule, prediction="eps", **parameters):
    process = stepwell.process(schedule, prediction=prediction)
    return stepwell.weighting(name, **parameters)(process, process.grid())


def masses(name, schedule, **parameters):
    process = stepwell.process(schedule)
    return pmf(stepwell.sampler(name, process, **parameters), process)


def rows(table):
    return [pytest.param(schedule, text, id=schedule) for schedule, text in table.items()]


def median(probabilities):
    return int((probabilities.cumsum(0) >= 0.5).int().argmax())


# Schedules.


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_betas_sum_to_the_published_checksum(schedule):
    assert_printed([BETAS[schedule](1000).sum()], published.SUM_OF_BETAS[schedule])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_alphas_cumprod_sum_to_the_published_checksum(schedule):
    process = stepwell.process(schedule)
    kept = process.scales(process.grid())[0] ** 2
    assert_printed([kept.sum()], published.SUM_OF_ALPHAS_CUMPROD[schedule])


@pytest.mark.parametrize(("schedule", "printed"), rows(published.ALPHAS_CUMPROD))
def test_alphas_cumprod(schedule, printed):
    process = stepwell.process(schedule)
    signal, noise = process.scales(process.grid())
    assert_printed((signal**2)[list(MASTER_TIMESTEPS)], printed, SIX)
    torch.testing.assert_close(signal**2 + noise**2, torch.ones_like(signal), rtol=0, atol=1e-15)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.SNR))
def test_snr(schedule, printed):
    process = stepwell.process(schedule)
    assert_printed(process.log_snr(process.grid()).exp()[list(MASTER_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_first_timesteps_below_an_snr(schedule):
    process = stepwell.process(schedule)
    snr = process.log_snr(process.grid()).exp()
    firsts = tuple(int((snr < level).int().argmax()) for level in (5, 1))
    assert firsts == published.FIRST_BELOW[schedule]


# Weights.


@pytest.mark.parametrize(("schedule", "printed"), rows(published.MIN_SNR_EPS))
def test_min_snr_on_eps(schedule, printed):
    assert_printed(weights("min-snr", schedule)[list(MASTER_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.MIN_SNR_V))
def test_min_snr_on_v(schedule, printed):
    assert_printed(weights("min-snr", schedule, "v")[list(MASTER_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.MIN_SNR_X0))
def test_min_snr_on_x0(schedule, printed):
    assert_printed(weights("min-snr", schedule, "x0")[list(MASTER_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.P2_GAMMA_1))
def test_p2(schedule, printed):
    assert_printed(weights("p2", schedule, gamma=1.0)[list(MASTER_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.P2_GAMMA_HALF))
def test_p2_with_gamma_one_half(schedule, printed):
    assert_printed(weights("p2", schedule, gamma=0.5)[list(MASTER_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.P2_GAMMA_0))
def test_p2_with_gamma_zero_is_no_weighting(schedule, printed):
    found = weights("p2", schedule, gamma=0.0)
    assert_printed(found[list(MASTER_TIMESTEPS)], printed, SIX)
    assert (found == 1).all()


def test_p2_with_another_k_is_its_formula():
    process = stepwell.process("linear")
    snr = process.log_snr(process.grid()).exp()
    torch.testing.assert_close(weights("p2", "linear", gamma=1.5, k=0.3), (0.3 + snr) ** -1.5)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.VLB_FIXED_LARGE))
def test_vlb_with_fixed_large_variance(schedule, printed):
    assert_printed(weights("vlb", schedule, cap=None)[list(MASTER_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.VLB_FIXED_SMALL))
def test_vlb_with_fixed_small_variance(schedule, printed):
    found = weights("vlb", schedule, variance="fixed-small", cap=None)
    # The formula is infinite at t = 0 (no SNR before it): the next test says what we have there.
    first, rest = printed.split(maxsplit=1)
    assert first == "inf"
    assert_printed(found[list(MASTER_TIMESTEPS)[1:]], rest, SIX)


def test_vlb_with_fixed_small_variance_is_finite_at_the_first_timestep():
    # Every DDPM code clips the posterior's log-variance, so t = 0 borrows the variance of t = 1. A weight
    # of infinity would train nothing else.
    found = weights("vlb", "linear", variance="fixed-small", cap=None)
    assert_printed(found[:1], published.VLB_FIRST_TERM_LINEAR)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_vlb_with_fixed_small_variance_is_the_ratio_of_snrs(schedule):
    process = stepwell.process(schedule)
    log_snr = process.log_snr(process.grid())
    found = weights("vlb", schedule, variance="fixed-small", cap=None)
    torch.testing.assert_close(found[1:], 0.5 * torch.expm1(-log_snr.diff()), rtol=1e-7, atol=0)


def test_vlb_on_cosine_is_its_last_timestep_unless_capped():
    found = weights("vlb", "cosine", cap=None)
    assert_printed([100 * found[-1] / found.sum()], published.VLB_COSINE_LAST_PERCENT)
    capped = weights("vlb", "cosine")
    assert capped[-1] == 1
    assert torch.equal(capped[:-2], found[:-2])


def test_vlb_in_bits_per_dimension():
    # As coded by Kim et al.: fixed-large, but for t = 0, where both variances are those of t = 1.
    coded = weights("vlb", "linear", cap=None)
    coded[0] = weights("vlb", "linear", variance="fixed-small", cap=None)[0]
    bits = coded[list(published.BITS_TIMESTEPS)] / math.log(2)
    assert_printed(bits, published.BITS_PER_DIMENSION)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.SOFT_MIN_SNR))
def test_soft_min_snr(schedule, printed):
    assert_printed(weights("soft-min-snr", schedule)[list(MASTER_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.DEBIASED))
def test_debiased(schedule, printed):
    assert_printed(weights("debiased", schedule)[list(MASTER_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(
    ("name", "parameters", "printed"),
    [
        ("min-snr", {}, published.MEAN_MIN_SNR_EPS),
        ("p2", {"gamma": 1.0}, published.MEAN_P2_GAMMA_1),
        ("p2", {"gamma": 0.5}, published.MEAN_P2_GAMMA_HALF),
        ("vlb", {"cap": None}, published.MEAN_VLB_FIXED_LARGE),
    ],
)
def test_mean_weight_under_uniform(name, parameters, printed):
    means = [weights(name, schedule, **parameters).mean() for schedule in SCHEDULES]
    assert_printed(means, printed, SIX)


# Logit-normal and log-normal.


def last_subtracted_from_one(found):
    """The tables' own last timestep is 1 - CDF, which keeps multiples of 2^-53 only."""
    return torch.cat([found[:-1], 1 - (1 - found[-1:])])


@pytest.mark.parametrize(
    ("as_published", "printed"), [(False, published.LOGIT_NORMAL_FLOOR), (True, published.LOGIT_NORMAL_ROUND)]
)
def test_logit_normal_by_floor_and_by_round(as_published, printed):
    found = masses("logit-normal", "linear", as_published=as_published)
    assert_printed(last_subtracted_from_one(found[list(MASTER_TIMESTEPS)]), printed, SIX)
    torch.testing.assert_close(found, found.flip(0), rtol=1e-9, atol=0)


def test_logit_normal_by_floor_of_one_timestep_less():
    sampler = stepwell.sampler("logit-normal", "linear")
    inside = sampler.cdf(edges(999)).diff()
    found = torch.cat([inside, 1 - sampler.cdf(torch.ones(1, dtype=torch.float64))])
    assert_printed(found[list(MASTER_TIMESTEPS)], published.LOGIT_NORMAL_FLOOR_SHORT, SIX)


@pytest.mark.parametrize(("mean", "std", "schedule", "printed", "middle"), published.EDM_ON_TIMESTEPS)
def test_log_normal_in_sigma_on_timesteps(mean, std, schedule, printed, middle):
    found = masses("log-normal-sigma", schedule, mean=mean, std=std)
    assert_printed(last_subtracted_from_one(found[list(published.EDM_TIMESTEPS)]), printed)
    assert median(found) == middle


def test_the_two_log_normals_have_nothing_in_common():
    # Kim et al. cite EDM's log-normal (median 88 on linear) and describe SD3's logit-normal.
    assert median(masses("logit-normal", "linear")) in (499, 500)


# SpeeD.


def slope(schedule, timesteps=1000):
    level = speed._noise_level(stepwell.process(schedule, timesteps=timesteps))
    return torch.gradient(level)[0]


@pytest.mark.parametrize(("schedule", "steps"), published.SPEED_MEANINGFUL_STEPS.items())
def test_speed_meaningful_steps(schedule, steps):
    assert speed._first_flat(slope(schedule), 1e-4) == steps


@pytest.mark.parametrize(("timesteps", "share"), published.SPEED_MEANINGFUL_SHARE.items())
def test_speed_official_threshold_moves_with_the_number_of_timesteps(timesteps, share):
    assert_printed([speed._first_flat(slope("linear", timesteps), 1e-4) / timesteps], share)


@pytest.mark.parametrize("timesteps", published.SPEED_MEANINGFUL_SHARE)
def test_speed_threshold_of_ours_is_a_share_of_the_process(timesteps):
    ours = speed._first_flat(slope("linear", timesteps), 1e-4 * 1000 / timesteps) / timesteps
    assert ours == pytest.approx(0.642, abs=0.0025)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.SPEED_LEGACY_DIRECT))
def test_speed_legacy_direct(schedule, printed):
    found = masses("speed", schedule, version="legacy", dual=False)[list(SPEED_TIMESTEPS)]
    assert_printed(found, printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.SPEED_LEGACY_MARGINAL))
@pytest.mark.parametrize("as_published", [False, True])
def test_speed_legacy_marginal(schedule, printed, as_published):
    found = masses("speed", schedule, version="legacy", as_published=as_published)[list(SPEED_TIMESTEPS)]
    assert_printed(found, printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.SPEED_LEGACY_MARGINAL_OF_128))
def test_speed_legacy_marginal_in_a_batch_of_128(schedule, printed):
    process = stepwell.process(schedule)
    sampler = stepwell.sampler("speed", process, version="legacy", as_published=True)
    found = sampler.density(process.grid(), torch.zeros(128, 3)) / 1000
    assert_printed(found[list(SPEED_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.SPEED_CURRENT_DIRECT))
def test_speed_current_direct(schedule, printed):
    assert_printed(masses("speed", schedule, dual=False)[list(SPEED_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.SPEED_CURRENT_MARGINAL))
@pytest.mark.parametrize("as_published", [False, True])
def test_speed_current_marginal(schedule, printed, as_published):
    found = masses("speed", schedule, as_published=as_published)[list(SPEED_TIMESTEPS)]
    assert_printed(found, printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.SPEED_WEIGHT))
def test_speed_weight(schedule, printed):
    assert_printed(weights("speed", schedule)[list(SPEED_TIMESTEPS)], printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.SPEED_WEIGHT_THEORY))
def test_speed_weight_of_theory(schedule, printed):
    found = weights("speed", schedule, ceiling=0.8, tau=1.0)[list(SPEED_TIMESTEPS)]
    assert_printed(found, printed, SIX)


@pytest.mark.parametrize(("schedule", "printed"), rows(published.SPEED_LOGNORM))
def test_speed_lognorm(schedule, printed):
    assert_printed(masses("speed", schedule, version="lognorm")[list(SPEED_TIMESTEPS)], printed)


def test_speed_weights_never_go_negative():
    # The official class default, lam = 5, maps to [-4, 5]: a third of linear's timesteps would be unlearned.
    with pytest.raises(InvalidParameter, match="ceiling"):
        stepwell.weighting("speed", ceiling=published.SPEED_CEILING_THAT_GOES_NEGATIVE)
    with pytest.raises(InvalidParameter, match="ceiling"):
        stepwell.weighting("speed", lam=published.SPEED_CEILING_THAT_GOES_NEGATIVE)


@pytest.mark.parametrize(("timestep", "wrong"), published.SPEED_WRONG_MIN_SNR.items())
def test_min_snr_is_not_the_one_of_speeds_code(timestep, wrong):
    # SpeeD's branch keeps torch's .min(axis)[0] on a NumPy array: one scalar, 5, stands for min(SNR, 5) at
    # every timestep. What it computes is 5 x P2, which shows that the wrong values are read right.
    assert_printed([5 * weights("p2", "linear")[timestep]], wrong, SIX)
    assert weights("min-snr", "linear")[timestep] == 1


# Samplers of other papers.


def test_loss_second_moment_worked_example():
    # The official code calls np.int, which NumPy removed in 1.24, and a process group that one worker does
    # not have: it cannot run. The formula is followed.
    process = stepwell.process("linear", timesteps=4)
    sampler = stepwell.sampler("loss-second-moment", process)
    u, losses = process.grid(), torch.tensor(published.SECOND_MOMENT_LOSSES)
    for step in range(10):
        assert_printed(pmf(sampler, process), " ".join(["0.25"] * 4), SIX)
        sampler.learn(stepwell.Feedback(stepwell.Tick(step=step), u, losses, losses))
    found = pmf(sampler, process)
    assert_printed(found, published.SECOND_MOMENT_PROBABILITIES)
    drawn = sampler.from_uniform(found.cumsum(0) - found / 2, torch.zeros(4), stepwell.Tick())
    assert process.time(drawn.u).tolist() == [0, 1, 2, 3]
    assert_printed(drawn.correction, published.SECOND_MOMENT_WEIGHTS)


@pytest.mark.parametrize(("w", "printed"), published.MODE.items())
def test_mode(w, printed):
    # Ours is an inverse CDF and rises; the formula's argument falls.
    v = torch.tensor([1 - w], dtype=torch.float64)
    drawn = stepwell.sampler("mode", "flow").from_uniform(v, torch.zeros(1), stepwell.Tick())
    assert_printed(drawn.u, printed, SIX)


@pytest.mark.parametrize(("u", "printed"), published.COSMAP.items())
def test_cosmap(u, printed):
    sampler = stepwell.sampler("cosmap", "flow")
    assert_printed(sampler.density(torch.tensor([u], dtype=torch.float64)), printed, SIX)


@pytest.mark.parametrize(("name", "printed"), published.MEDIANS.items())
def test_densities_of_2025(name, printed):
    half = torch.tensor([0.5], dtype=torch.float64)
    assert_printed(
        stepwell.sampler(name, "flow").from_uniform(half, torch.zeros(1), stepwell.Tick()).u, printed
    )


DRAWS = 200_000


def beta_draws(generator):
    """Beta(1.5, 1) has the CDF b^1.5."""
    return 0.001 + 0.999 * torch.rand(DRAWS, dtype=torch.float64, generator=generator) ** (1 / 1.5)


def u_draws(generator):
    """Rejection from uniform draws, as many as are needed."""
    u, height = (torch.rand(6 * DRAWS, dtype=torch.float64, generator=generator) for _ in range(2))
    kept = height * (1 + math.exp(4)) < torch.exp(4 * u) + torch.exp(4 * (1 - u))
    return u[kept][:DRAWS]


def normal_draws(mean, std):
    return lambda generator: torch.sigmoid(
        mean + std * torch.randn(DRAWS, dtype=torch.float64, generator=generator)
    )


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("pi0", beta_draws),
        ("u-shaped", u_draws),
        # JiT's own time is 1 - u, its mean -0.8; log-SNR is -2 logit(u).
        ("jit", lambda generator: 1 - normal_draws(-0.8, 0.8)(generator)),
        ("style-friendly", normal_draws(3, 1)),
    ],
)
def test_draws_are_those_of_the_formula(name, draws):
    theirs = draws(torch.Generator().manual_seed(0)).sort().values
    assert len(theirs) == DRAWS
    mass = stepwell.sampler(name, "flow").cdf(theirs)
    counted = torch.arange(1, DRAWS + 1) / DRAWS
    # Kolmogorov and Smirnov: more comes by chance once in a million.
    assert float((mass - counted).abs().max()) < 2.69 / math.sqrt(DRAWS)


def test_the_mean_of_pi0():
    v = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    drawn = stepwell.sampler("pi0", "flow").from_uniform(v, torch.zeros(len(v)), stepwell.Tick()).u
    assert_printed([drawn.mean()], "0.6004")


def test_u_shaped():
    found = stepwell.sampler("u-shaped", "flow").density(torch.tensor([0.0, 0.5], dtype=torch.float64))
    assert_printed(found, published.U_SHAPED)


def test_laplace_in_log_snr():
    process = stepwell.process("flow")
    quarter = torch.tensor([0.25], dtype=torch.float64)
    drawn = stepwell.sampler("laplace", process).from_uniform(quarter, torch.zeros(1), stepwell.Tick())
    assert_printed(process.log_snr(drawn.u), published.LAPLACE_LOG_SNR_AT_QUARTER, SIX)


@pytest.mark.parametrize("schedule", published.LAPLACE_ON_TIMESTEPS)
def test_laplace_on_timesteps(schedule):
    found = masses("laplace", schedule)
    for timestep, text in published.LAPLACE_ON_TIMESTEPS[schedule].items():
        assert_printed(found[[timestep]], text)


def test_laplace_median_on_linear():
    assert median(masses("laplace", "linear")) == published.LAPLACE_MEDIAN_LINEAR


def test_beta():
    assert_printed(masses("beta", "linear")[list(published.BETA_TIMESTEPS)], published.BETA, SIX)


def test_beta_policy_bins_by_round():
    start = published.BETA_POLICY_START

    class Start(Uniform):
        def cdf(self, u):
            return beta_cdf(u, start, start)

    found = rounded(Start(), 1000).shares[list(MASTER_TIMESTEPS)]
    assert_printed(found, published.BETA_POLICY_BINS, SIX)


def test_uniform_bins_by_round_halve_the_ends():
    found = rounded(Uniform(), 1000).shares
    assert_printed(found[[0, 999]], f"{published.UNIFORM_ROUNDED_END} {published.UNIFORM_ROUNDED_END}")
    assert_printed(found[[1, 500]], f"{published.UNIFORM_ROUNDED_INSIDE} {published.UNIFORM_ROUNDED_INSIDE}")

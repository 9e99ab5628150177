"""Variance-preserving processes in T timesteps."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from cases import OF_FLOWS

import stepwell
from stepwell.catalogue.find import find, names
from stepwell.core.density import Table, edges
from stepwell.core.errors import InvalidParameter
from stepwell.core.sampler import pmf
from stepwell.processes.discrete import DiscreteProcess

SCHEDULES = ("linear", "cosine", "quadratic", "scaled-linear")
PREDICTIONS = ("eps", "v", "x0")
COUNTS = (1, 2, 10, 100, 4000)
WEIGHTINGS = [name for name in names("weighting") if name not in ("likelihood", *OF_FLOWS)]

every_schedule = pytest.mark.parametrize("name", SCHEDULES)


@every_schedule
@pytest.mark.parametrize("timesteps", COUNTS)
def test_any_number_of_timesteps(name, timesteps):
    process = stepwell.process(name, timesteps=timesteps)
    u = process.grid()
    signal, noise = process.scales(u)
    assert process.time(u).tolist() == list(range(timesteps))
    assert (process.log_snr(u).diff() < 0).all()
    assert process.log_snr(u).isfinite().all()
    torch.testing.assert_close(signal**2 + noise**2, torch.ones_like(u))
    for weighting in WEIGHTINGS:
        assert stepwell.weighting(weighting)(process, u).isfinite().all()


@pytest.mark.parametrize("name", ["linear", "quadratic", "scaled-linear"])
@pytest.mark.parametrize("timesteps", [100, 4000])
def test_rescaled_schedules_destroy_as_much_whatever_the_number_of_timesteps(name, timesteps):
    last = torch.tensor([1 - 1e-9], dtype=torch.float64)
    published = stepwell.process(name).log_snr(last)
    rescaled = stepwell.process(name, timesteps=timesteps).log_snr(last)
    torch.testing.assert_close(rescaled, published, rtol=0.15, atol=0)


@pytest.mark.parametrize("timesteps", [0, -1, 2.5, True])
def test_a_number_of_timesteps_that_cannot_work_is_an_error(timesteps):
    with pytest.raises(InvalidParameter, match="timesteps"):
        stepwell.process("linear", timesteps=timesteps)


@pytest.mark.parametrize("kept", [[], [0.5, 0.5], [0.5, 0.6], [1.0, 0.5], [0.5, -0.1], [[0.5]], [math.nan]])
def test_alphas_cumprod_must_fall_inside_the_unit_interval(kept):
    with pytest.raises(InvalidParameter, match="alphas_cumprod"):
        DiscreteProcess(torch.tensor(kept))


@every_schedule
def test_targets_are_what_the_predictions_say(name):
    generator = torch.Generator().manual_seed(0)
    x0, noise = torch.randn(2, 1000, 2, generator=generator, dtype=torch.float64)
    process = stepwell.process(name)
    u = process.grid()
    a, s = (scale[:, None] for scale in process.scales(u))
    said = {"eps": noise, "x0": x0, "v": a * noise - s * x0}
    for prediction, target in said.items():
        problem = stepwell.process(name, prediction=prediction).corrupt(x0, noise, u)
        torch.testing.assert_close(problem.target, target, rtol=0, atol=0)
        assert torch.equal(problem.input, problem.xt)


# Timesteps.


@pytest.mark.parametrize("timesteps", [3, 7, 1000, 4000])
def test_index_is_exact_on_both_sides_of_every_border(timesteps):
    # float32 u T would round up to the border from just below it.
    process = stepwell.process("linear", timesteps=timesteps)
    border = edges(timesteps)[1:].float()
    for u in (border.nextafter(torch.zeros(())), border[:-1], border[:-1].nextafter(torch.ones(()))):
        exact = [math.floor(Fraction(value) * timesteps) for value in u.tolist()]
        assert process.index(u).tolist() == exact


@pytest.mark.parametrize("timesteps", [7, 1000, 4000])
def test_a_draw_from_a_timesteps_bin_is_that_timestep(timesteps):
    # The first and the last float32 uniforms of every bin: a border such as 0.501 is not a float32 number,
    # and a draw rounded to the wrong side of it would have the density of its neighbour.
    process = stepwell.process("linear", timesteps=timesteps)
    table = Table(edges(timesteps), torch.ones(timesteps, dtype=torch.float64))
    border = edges(timesteps)[1:-1].float()
    near = torch.cat([border + k * 2.0**-24 for k in range(-4, 5)])
    u = table.quantile(near)
    wrong = table.bin_of(u) != process.index(u)
    assert not wrong.any(), f"{int(wrong.sum())} draws, such as u = {u[wrong][0]!r}"


def test_a_range_of_timesteps_is_never_left():
    process = stepwell.process("linear")
    ends = torch.cat([torch.arange(4), torch.arange(2**23 - 4, 2**23)])
    v = (ends + 0.5) * 2.0**-23
    left = []
    for first in range(1, 990):
        sampler = stepwell.sampler("uniform", process, min_timestep=first, max_timestep=first + 10)
        drawn = process.index(sampler.from_uniform(v, v, stepwell.Tick()).u)
        left += [(first, int(t)) for t in drawn if not first <= t < first + 10]
    assert not left, f"{len(left)} draws outside their range, such as (min_timestep, t) = {left[:3]}"


@every_schedule
@pytest.mark.parametrize("timesteps", COUNTS)
def test_unit_time_is_the_middle_of_the_timestep(name, timesteps):
    process = stepwell.process(name, timesteps=timesteps)
    time = torch.arange(timesteps)
    assert torch.equal(process.time(process.unit_time(time)), time)
    u = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    assert ((process.unit_time(process.time(u)) - u).abs() <= 0.5 / timesteps + 1e-7).all()


# Log-SNR.


@every_schedule
def test_at_log_snr_inverts_log_snr(name):
    process = stepwell.process(name)
    u = process.grid()
    assert torch.equal(process.time(process.at_log_snr(process.log_snr(u))), torch.arange(1000))


@every_schedule
def test_at_log_snr_is_the_nearest_timestep(name):
    process = stepwell.process(name, timesteps=20)
    table = process.log_snr(process.grid())
    asked = torch.linspace(-25, 15, 401, dtype=torch.float64)
    nearest = (asked[:, None] - table).abs().argmin(1)
    assert torch.equal(process.time(process.at_log_snr(asked)), nearest)


@every_schedule
def test_log_snr_is_that_of_the_scales(name):
    process = stepwell.process(name)
    signal, noise = process.scales(process.grid())
    torch.testing.assert_close(
        process.log_snr(process.grid()), 2 * (signal.log() - noise.log()), rtol=0, atol=1e-10
    )


@every_schedule
def test_log_snr_rate_is_the_numerical_derivative(name):
    process = stepwell.process(name)
    u = process.grid()
    slope = np.gradient(process.log_snr(u).numpy(), u.numpy())
    torch.testing.assert_close(process.log_snr_rate(u), torch.tensor(slope))


def test_log_snr_rate_of_linear_is_its_closed_form():
    # log abar(u) is -(0.1 u + 9.95 u^2) in the limit of many timesteps.
    process = stepwell.process("linear", timesteps=20_000)
    u = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    kept = torch.exp(-(0.1 * u + 9.95 * u**2))
    torch.testing.assert_close(process.log_snr_rate(u), -(0.1 + 19.9 * u) / (1 - kept), rtol=2e-3, atol=0)


def test_one_timestep_has_no_rate():
    process = stepwell.process("linear", timesteps=1)
    assert process.log_snr_rate(process.grid()).tolist() == [0.0]


# Zero terminal SNR.


@every_schedule
def test_zero_terminal_snr_leaves_exactly_nothing(name):
    process, plain = stepwell.process(name, zero_terminal_snr=True), stepwell.process(name)
    u = process.grid()
    signal, noise = process.scales(u)
    assert signal[-1] == 0
    assert noise[-1] == 1
    assert process.log_snr(u)[-1] == -math.inf
    assert (process.log_snr(u).diff() < 0).all()
    # The rescaling keeps the first timestep.
    torch.testing.assert_close(signal[0], plain.scales(u)[0][0])


@every_schedule
@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_are_defined_at_zero_snr(name, prediction, weighting, dtype):
    process = stepwell.process(name, prediction=prediction, zero_terminal_snr=True)
    weights = stepwell.weighting(weighting)(process, process.grid().to(dtype))
    assert weights.dtype == dtype
    assert weights.isfinite().all()
    assert (weights >= 0).all()


@pytest.mark.parametrize("variance", ["fixed-large", "fixed-small"])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_uncapped_bound_is_defined_at_zero_snr(variance, prediction):
    process = stepwell.process("linear", prediction=prediction, zero_terminal_snr=True)
    weights = stepwell.weighting("vlb", variance=variance, cap=None)(process, process.grid())
    assert weights.isfinite().all()


@pytest.mark.parametrize(("prediction", "weight"), [("eps", 1.0), ("v", 0.0), ("x0", 0.0)])
def test_min_snr_at_zero_snr_is_the_limit_of_its_formula(prediction, weight):
    # min(SNR, 5) / SNR, / (SNR + 1), and min(SNR, 5).
    process = stepwell.process("linear", prediction=prediction, zero_terminal_snr=True)
    assert stepwell.weighting("min-snr")(process, process.grid())[-1] == weight


@pytest.mark.parametrize("prediction", ["v", "x0"])
def test_recover_works_at_zero_snr(prediction):
    process = stepwell.process("cosine", prediction=prediction, zero_terminal_snr=True)
    u = process.grid()[-1:]
    x0, noise = torch.ones(1, 4), torch.full((1, 4), 2.0)
    problem = process.corrupt(x0, noise, u)
    assert torch.equal(problem.xt, noise)
    torch.testing.assert_close(process.recover(problem.target, problem.xt, u), x0)


def test_zero_terminal_snr_needs_two_timesteps():
    with pytest.raises(InvalidParameter, match="at least 2"):
        stepwell.process("linear", timesteps=1, zero_terminal_snr=True)


NEED_MORE = ("table", "over-steps")
"""Samplers with a parameter that has no default."""
ANYWHERE = [name for name in names("sampler") if name not in NEED_MORE and not find("sampler", name).process]


@pytest.mark.parametrize("name", ANYWHERE)
def test_samplers_are_defined_at_zero_snr(name):
    process = stepwell.process("linear", prediction="v", zero_terminal_snr=True)
    masses = pmf(stepwell.sampler(name, process), process)
    assert (masses >= 0).all()
    assert float(masses.sum()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["linear", "quadratic", "scaled-linear", "cosine"])
@pytest.mark.parametrize("timesteps", [1000, 250])
def test_a_schedule_is_known_by_its_betas(name: str, timesteps: int) -> None:
    process = stepwell.process(name, timesteps=timesteps)
    assert process.schedule() == name
    assert DiscreteProcess(process.alphas_cumprod().float(), "v").schedule() == name
    assert stepwell.process(name, timesteps=timesteps, zero_terminal_snr=True).schedule() is None
    assert stepwell.process("flow").schedule() is None


def test_ldms_schedule_for_celeba_is_no_other() -> None:
    celeba = stepwell.process("scaled-linear", beta_start=0.0015, beta_end=0.0195)
    assert celeba.schedule() is None

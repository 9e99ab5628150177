"""Every solver on data whose optimal network and ODE are known in closed form."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from gaussian_network import GaussianNetwork, along_the_ode, sigma_at, unit_noise
from torch import Tensor

import stepwell
from stepwell.core.errors import InvalidParameter, UnknownName, Unsupported
from stepwell.generate.diffusers_solvers import DiffusersSolver, make_scheduler
from stepwell.generate.images import Request, generate
from stepwell.generate.solvers import SOLVERS
from stepwell.processes.discrete import DiscreteProcess

STD = 0.5
SHAPE = (1, 4, 4)
PREDICTIONS = ("eps", "v", "x0")
DETERMINISTIC = ("ddim", "heun", "dpm-solver++", "unipc")


def made(network: GaussianNetwork, solver: str, steps: int, **changes: object) -> Tensor:
    """Four float images [4, 1, 4, 4], as they are before decoding."""
    request = Request(4, SHAPE, solver, steps, clip=None, **changes)  # type: ignore[arg-type]
    return torch.cat(list(generate(network, network.process, request, decode=lambda x: x)))


def started(solver: DiffusersSolver, process: DiscreteProcess) -> tuple[Tensor, float, float]:
    """The noise in x0 + sigma eps, the sigma it has, and the last sigma before 0."""
    first, last = (float(sigma_at(process, solver.times[place])) for place in (0, -1))
    scale = first if solver.name == "heun" else (1 + first**2) ** 0.5
    return unit_noise(4, SHAPE) * scale, first, last


def uniform_in_log_snr(timesteps: int, prediction: str = "eps") -> DiscreteProcess:
    """log(sigma) from -3 to 3 in equal steps."""
    return DiscreteProcess(torch.sigmoid(torch.linspace(6, -6, timesteps, dtype=torch.float64)), prediction)


def order(process: DiscreteProcess, solver: str, steps: tuple[int, ...]) -> float:
    """Minus the slope of log(error) over log(steps).

    The step to sigma 0 is one of first order in all solvers, E[x0 | x]; it is exact here, so that the error
    is that of the steps before.
    """
    errors = []
    for count in steps:
        route = DiffusersSolver(process, solver, count)
        x, first, last = started(route, process)
        exact = along_the_ode(x, first, last, STD) * STD**2 / (STD**2 + last**2)
        errors.append(float((made(GaussianNetwork(process, STD), solver, count) - exact).abs().max()))
    return -float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


@pytest.mark.parametrize(
    ("solver", "least", "most"),
    # Measured: 1.0, 2.1, 1.9 and 3.0. UniPC of order 2 has a corrector, which adds one.
    [("ddim", 0.9, 1.2), ("heun", 1.9, 2.3), ("dpm-solver++", 1.7, 2.2), ("unipc", 2.7, 3.3)],
)
def test_orders_of_convergence(solver: str, least: float, most: float) -> None:
    # 960 / n is whole: no solver has to round to a timestep. DPM-Solver++ and UniPC count from 0 to T - 1.
    process = uniform_in_log_snr(960 if solver == "ddim" else 961)
    assert least < order(process, solver, (16, 32, 64, 96)) < most


@pytest.mark.parametrize(("solver", "least", "most"), [("ddim", 0.85, 1.1), ("heun", 1.9, 2.4)])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_orders_on_the_schedules_of_training(schedule: str, solver: str, least: float, most: float) -> None:
    """Against the whole ODE, down to sigma 0."""
    process = stepwell.process(schedule)
    assert isinstance(process, DiscreteProcess)
    steps = (16, 32, 64) if solver == "heun" else (20, 50, 100, 200)
    errors = []
    for count in steps:
        x, first, _ = started(DiffusersSolver(process, solver, count), process)
        exact = along_the_ode(x, first, 0.0, STD)
        errors.append(float((made(GaussianNetwork(process, STD), solver, count) - exact).abs().max()))
    assert least < -np.polyfit(np.log(steps), np.log(errors), 1)[0] < most


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("solver", DETERMINISTIC)
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_solvers_and_predictions_agree_at_many_steps(schedule: str, solver: str, prediction: str) -> None:
    process = stepwell.process(schedule, prediction=prediction)
    assert isinstance(process, DiscreteProcess)
    steps = {"ddim": 500, "heun": 100}.get(solver, 150)
    x, first, _ = started(DiffusersSolver(process, solver, steps), process)
    found = made(GaussianNetwork(process, STD, [0.2]), solver, steps)
    exact = along_the_ode(x, first, 0.0, STD, 0.2)
    # DDIM's 500 steps leave 0.004 of a standard deviation of 0.5; the others less.
    assert (found - exact).abs().max() < 0.012


@pytest.mark.parametrize(("prediction", "steps"), [("eps", 1000), ("eps", 100), ("v", 100), ("x0", 70)])
def test_ddpm_has_the_variance_of_its_own_chain(prediction: str, steps: int) -> None:
    """On Gaussian data every step is x -> c x + sqrt(beta) z, so the variance is known exactly."""
    process = stepwell.process("linear", prediction=prediction)
    assert isinstance(process, DiscreteProcess)
    request = Request(16, (1, 16, 16), "ddpm", steps, batch=16, clip=None)
    images = torch.cat(list(generate(GaussianNetwork(process, STD), process, request, decode=lambda x: x)))
    times = DiffusersSolver(process, "ddpm", steps).times.tolist()
    kept = process.alphas_cumprod().tolist()
    variance = 1.0
    for here, before in zip(times, [*times[1:], None], strict=True):
        now, then = kept[here], 1.0 if before is None else kept[before]
        alpha = now / then
        x0 = now**0.5 * STD**2 / (now * STD**2 + 1 - now)
        kept_share = then**0.5 * (1 - alpha) / (1 - now) * x0 + alpha**0.5 * (1 - then) / (1 - now)
        variance = kept_share**2 * variance + (0 if before is None else 1 - alpha)
    # 4,096 independent values: the relative error of their variance is 0.022; 5 of those fail 6e-7 of seeds.
    assert abs(float(images.var()) / variance - 1) < 0.11
    if steps == 1000:
        assert variance == pytest.approx(STD**2, rel=0.02), "the chain itself is right"


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("solver", DiscreteProcess.solvers)
def test_clipping_reaches_every_solver(solver: str, prediction: str) -> None:
    """Data around 3: clipped to 1 or 2, or 3 as they are."""
    process = stepwell.process("cosine", timesteps=100, prediction=prediction)
    assert isinstance(process, DiscreteProcess)
    network = GaussianNetwork(process, 0.01, [3.0])
    for largest in (1.0, 2.0):
        request = Request(2, SHAPE, solver, 20, clip=largest)
        clipped = torch.cat(list(generate(network, process, request, decode=lambda x: x)))
        assert torch.allclose(clipped, torch.full_like(clipped, largest), atol=1e-5), "no noise at the end"
    assert (made(network, solver, 20) - 3).abs().max() < 0.2


@pytest.mark.parametrize("solver", DiscreteProcess.solvers)
def test_network_evaluations_are_counted_honestly(solver: str) -> None:
    process = stepwell.process("linear", timesteps=100)
    assert isinstance(process, DiscreteProcess)
    network = GaussianNetwork(process, STD, [0.0, 0.1, 0.2])
    made(network, solver, 10)
    assert sum(network.calls) == 4 * SOLVERS[solver].evaluations(10)
    network.calls.clear()
    made(network, solver, 10, labels=(0, 1), guidance=2.0)
    assert sum(network.calls) == 4 * SOLVERS[solver].evaluations(10, guided=True)


def test_heun_is_edms_first_algorithm() -> None:
    """Noise levels (Eq. 5, rho 7), no churn, the trapezoid but for the last step (Karras et al. 2022)."""
    process = stepwell.process("linear")
    assert isinstance(process, DiscreteProcess)
    plan = DiffusersSolver(process, "heun", 12, clip=None)
    x, most, least = started(plan, process)
    ramp = torch.linspace(0, 1, 12, dtype=torch.float64)
    sigmas = [*((most ** (1 / 7) + ramp * (least ** (1 / 7) - most ** (1 / 7))) ** 7).tolist(), 0.0]
    assert 78 < most <= 80
    assert least == pytest.approx(0.01, rel=1e-3)

    def slope(x: Tensor, sigma: float) -> Tensor:
        return x * sigma / (STD**2 + sigma**2)

    for here, there in pairwise(sigmas):
        first = slope(x, here)
        moved = x + (there - here) * first
        x = x + (there - here) * (first + slope(moved, there)) / 2 if there else moved
    # diffusers keeps sigmas and times in float32.
    assert torch.allclose(made(GaussianNetwork(process, STD), "heun", 12), x, rtol=2e-5, atol=1e-6)
    assert plan.times.is_floating_point()
    assert (plan.times != plan.times.round()).any(), "the network is told times between timesteps"


@pytest.mark.parametrize("solver", ["ddpm", "ddim"])
@pytest.mark.parametrize("steps", [1, 29, 31, 50, 64, 300, 999, 1000])
def test_any_number_of_steps_runs_from_the_last_timestep_to_the_first(solver: str, steps: int) -> None:
    """diffusers' own spacing ends at t = -1 with 29 or 31 steps, and DDIM's leaves its timesteps with 300."""
    plan = DiffusersSolver(stepwell.process("linear"), solver, steps)
    assert len(plan.times) == steps
    assert int(plan.times[0]) == 999
    assert (plan.times.diff() < 0).all()
    assert 0 <= int(plan.times[-1]) <= round(1000 / steps) - 1


def test_ddim_with_steps_that_do_not_divide_the_timesteps() -> None:
    process = stepwell.process("linear")
    assert isinstance(process, DiscreteProcess)
    errors = {}
    for steps in (200, 300):
        x, first, _ = started(DiffusersSolver(process, "ddim", steps), process)
        found = made(GaussianNetwork(process, STD), "ddim", steps)
        errors[steps] = float((found - along_the_ode(x, first, 0.0, STD)).abs().max())
    assert errors[300] < errors[200]


@pytest.mark.parametrize("solver", DiscreteProcess.solvers)
def test_zero_terminal_snr_is_generated_from_v_and_refused_from_eps(solver: str) -> None:
    process = stepwell.process("linear", zero_terminal_snr=True, prediction="v")
    assert isinstance(process, DiscreteProcess)
    if solver in ("ddpm", "ddim"):
        # An optimal network at infinite sigma is none of the closed form's; a constant one will do.
        assert DiffusersSolver(process, solver, 50).scheduler.alphas_cumprod[-1] == 0
    else:
        assert torch.isfinite(made(GaussianNetwork(process, STD), solver, 20)).all()
    with pytest.raises(Unsupported, match="prediction=v"):
        make_scheduler(stepwell.process("linear", zero_terminal_snr=True), solver)


def test_betas_of_the_scheduler_are_those_of_training() -> None:
    process = stepwell.process("quadratic", timesteps=200)
    assert isinstance(process, DiscreteProcess)
    for solver in DiscreteProcess.solvers:
        table = make_scheduler(process, solver).alphas_cumprod.double()
        assert torch.allclose(table, process.alphas_cumprod()[: len(table)], atol=1e-6)


def test_steps_that_cannot_be() -> None:
    process = stepwell.process("linear", timesteps=50)
    with pytest.raises(InvalidParameter, match="60 denoising steps are more than the process's 50"):
        DiffusersSolver(process, "ddim", 60)
    with pytest.raises(InvalidParameter, match="2 steps or more"):
        DiffusersSolver(process, "heun", 1)
    with pytest.raises(InvalidParameter, match="steps at most, not 50"):
        DiffusersSolver(process, "unipc", 50)
    with pytest.raises(Unsupported, match="use a discrete process"):
        DiffusersSolver(stepwell.process("edm"), "heun", 5)
    with pytest.raises(Unsupported, match="use ddim or ddpm"):
        DiffusersSolver(DiscreteProcess(torch.tensor([1e-5, 1e-6])), "heun", 2)
    with pytest.raises(UnknownName, match="Did you mean 'dpm-solver\\+\\+'"):
        Request(1, SHAPE, "dpm-solver")
    with pytest.raises(InvalidParameter, match="eta is DDIM's noise"):
        Request(1, SHAPE, "heun", eta=0.5)

"""Generation where time is continuous, on Gaussian data: the optimal network and its ODE in closed form.

In x / signal = x0 + sigma eps the ODE keeps x / sqrt(std^2 + sigma^2), so that x itself keeps its share of
sqrt(signal^2 std^2 + noise^2): also where no signal is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import case
from gaussian_network import unit_noise
from oracles import optimal_output
from torch import Tensor, nn

import stepwell
from stepwell.cli.main import main
from stepwell.core.errors import InvalidParameter, UnknownName, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import per_example
from stepwell.generate.images import Request, generate, make_solver
from stepwell.generate.own_solvers import OwnSolver
from stepwell.generate.solvers import SOLVERS
from stepwell.models.denoiser import Condition
from stepwell.models.registry import build_model
from stepwell.processes.discrete import DiscreteProcess
from stepwell.processes.flow import FlowProcess
from stepwell.recipes.experiment import trained
from stepwell.recipes.load import load
from stepwell.recipes.schema import BadRecipe
from stepwell.recipes.score import Effort, score

STD = 0.5
SHAPE = (1, 4, 4)
PROCESSES: dict[str, tuple[str, dict[str, Any]]] = {
    "flow": ("flow", {}),
    "flow-shifted": ("flow", {"shift": 3.0}),
    "flow-x0": ("flow", {"prediction": "x0"}),
    "flow-eps": ("flow", {"prediction": "eps"}),
    "edm": ("edm", {}),
    "vp": ("vp", {}),
    "vp-v": ("vp", {"prediction": "v"}),
    "vp-x0": ("vp", {"prediction": "x0"}),
    "ve": ("ve", {}),
    "ve-x0": ("ve", {"prediction": "x0"}),
}
FOUR = ("flow", "edm", "vp", "ve")
every_process = pytest.mark.parametrize("name", PROCESSES)
each_solver_once = pytest.mark.parametrize(
    ("solver", "name"),
    [
        case(solver, name, quick=place == number % 4, id=f"{solver}-{name}")
        for number, solver in enumerate(NoiseProcess.solvers)
        for place, name in enumerate(FOUR)
    ],
)


class GaussianNetwork(nn.Module):
    """The optimal network of N(mean, std^2); classes have a mean each, the last one is that of no class."""

    label_dropout = 0.1

    def __init__(self, process: NoiseProcess, means: Sequence[float] = (0.0,), std: float = STD) -> None:
        super().__init__()
        self.process, self.std, self.classes = process, std, len(means) - 1
        self.means = nn.Parameter(torch.tensor(means, dtype=torch.float64), requires_grad=False)
        self.calls: list[int] = []

    def forward(self, x: Tensor, time: Tensor, condition: Condition) -> Tensor:
        self.calls.append(len(x))
        u = self.process.unit_time(time).clamp(0, 1)
        a, p = (per_example(v, x) for v in (self.process.scales(u)[0], self.process.target_mix(u)[0]))
        mean = self.means[-1:] if condition.labels is None else self.means[condition.labels]
        mean = mean.reshape(-1, 1, 1, 1)
        xt = x / per_example(self.process.input_scale(u), x)
        # What is known of x0 - mean is known from x - signal mean.
        return optimal_output(self.process, xt - a * mean, u, self.std) + p * mean


def process_of(name: str) -> NoiseProcess:
    return stepwell.process(PROCESSES[name][0], **PROCESSES[name][1])


def made(network: GaussianNetwork, solver: str, steps: int, count: int = 4, **changes: Any) -> Tensor:
    """Float images, as they are before decoding."""
    shape = changes.pop("shape", SHAPE)
    request = Request(count, shape, solver, steps, clip=changes.pop("clip", None), **changes)
    return torch.cat(list(generate(network, network.process, request, decode=lambda x: x)))


def spread(process: NoiseProcess, u: Tensor) -> Tensor:
    """The standard deviation of x at unit times."""
    a, s = process.scales(u)
    return torch.sqrt(a**2 * STD**2 + s**2)


def exact(solver: OwnSolver) -> Tensor:
    """Where the ODE takes the noise of four images.

    Of a flow, to the data. Elsewhere to the smallest noise of training, and then by the solvers' own last
    step, E[x0 | x], whose error does not depend on the number of steps.
    """
    process, times = solver.process, solver.times
    # A solver starts at noise(u) eps: signal that is left in the process is left out, as in all samplers.
    x = process.scales(times[:1])[1] * unit_noise(4, SHAPE)
    if isinstance(process, FlowProcess):
        return x * STD / spread(process, times[:1])
    moved = x * spread(process, times[-1:]) / spread(process, times[:1])
    a, s = process.scales(times[-1:])
    return moved * a * STD**2 / (a**2 * STD**2 + s**2)


def order(name: str, solver: str, steps: tuple[int, ...]) -> float:
    """Minus the slope of log(error) over log(steps)."""
    process = process_of(name)
    errors = []
    for count in steps:
        route = OwnSolver(process, solver, count, None)
        errors.append(float((made(GaussianNetwork(process), solver, count) - exact(route)).abs().max()))
    return -float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


@pytest.mark.parametrize("name", [case(name, quick=name in FOUR) for name in PROCESSES])
@pytest.mark.parametrize(("solver", "least", "most"), [("euler", 0.95, 1.05), ("heun", 1.9, 2.15)])
def test_orders_of_convergence(name: str, solver: str, least: float, most: float) -> None:
    """Measured: Euler 0.98 to 0.99, Heun 1.99 to 2.08."""
    assert least < order(name, solver, (32, 64, 128)) < most


@each_solver_once
def test_mean_and_variance_are_those_of_the_data(name: str, solver: str) -> None:
    """4,096 values: standard errors are 0.022 of the variance and 0.016 deviations; 5 fail 6e-7 of seeds.

    Beside that, 0.07 for finite steps: ancestral's variance is 0.93 to 0.97 of the data's at 200.
    """
    network = GaussianNetwork(process_of(name), [0.3])
    # The corrector's step is as long as the noise of an image says, which must not be a few numbers.
    images = made(network, solver, 200 if solver == "ancestral" else 60, count=16, shape=(1, 16, 16))
    assert abs(float(images.var()) / STD**2 - 1) < 5 * 0.022 + 0.07
    assert abs(float(images.mean()) - 0.3) < 5 * 0.016 * STD + 0.01


@pytest.mark.parametrize("name", FOUR)
def test_ancestral_has_the_variance_of_its_own_chain(name: str) -> None:
    """Every step is y -> c y + d z on Gaussian data, so the variance is known exactly, and comes to std^2."""
    process = process_of(name)
    variances = {}
    for steps in (30, 1000):
        u = OwnSolver(process, "ancestral", steps, None).times
        a, s = (scale.tolist() for scale in process.scales(u))
        variance = s[0] ** 2
        for (a1, s1), (a2, s2) in pairwise([*zip(a, s, strict=True), (1.0, 0.0)]):
            x0 = a1 * STD**2 / (a1**2 * STD**2 + s1**2)
            kept = (s2 * a1) / (a2 * s1)
            factor = a2 * x0 + s2 * kept * (1 - a1 * x0) / s1
            variance = factor**2 * variance + s2**2 * (1 - kept**2)
        variances[steps] = variance
    images = made(GaussianNetwork(process), "ancestral", 30, count=256, batch=256)
    assert abs(float(images.var()) / variances[30] - 1) < 5 * 0.022
    assert variances[1000] == pytest.approx(STD**2, rel=0.02)


def test_heun_on_edm_is_its_first_algorithm() -> None:
    """Noise levels (Eq. 5, rho 7), no churn, the trapezoid but for the last step (Karras et al. 2022)."""
    most, least = 80 ** (1 / 7), 0.002 ** (1 / 7)
    sigmas = [*((most + np.linspace(0, 1, 18) * (least - most)) ** 7).tolist(), 0.0]
    x = 80 * unit_noise(4, SHAPE)
    for here, there in pairwise(sigmas):
        first = x * here / (STD**2 + here**2)
        moved = x + (there - here) * first
        second = moved * there / (STD**2 + there**2)
        x = x + (there - here) * (first + second) / 2 if there else moved
    torch.testing.assert_close(made(GaussianNetwork(process_of("edm")), "heun", 18), x, rtol=1e-8, atol=1e-10)


def test_euler_on_a_flow_is_sd3s() -> None:
    """x + (t' - t) velocity at t = s u / (1 + (s - 1) u), u evenly spaced from 1 to 0."""
    u = np.linspace(1, 0, 11)
    x = unit_noise(4, SHAPE)
    for here, there in pairwise((3 * u / (1 + 2 * u)).tolist()):
        velocity = (here - (1 - here) * STD**2) / ((1 - here) ** 2 * STD**2 + here**2) * x
        x = x + (there - here) * velocity
    torch.testing.assert_close(made(GaussianNetwork(process_of("flow-shifted")), "euler", 10), x)


def test_euler_on_vp_is_ddims_step() -> None:
    process = process_of("vp")
    a, s = process.scales(OwnSolver(process, "euler", 12, None).times)
    x = s[0] * unit_noise(4, SHAPE)
    for (a1, s1), (a2, s2) in pairwise([*zip(a.tolist(), s.tolist(), strict=True), (1.0, 0.0)]):
        x0 = a1 * STD**2 / (a1**2 * STD**2 + s1**2) * x
        x = a2 * x0 + s2 * (x - a1 * x0) / s1
    torch.testing.assert_close(made(GaussianNetwork(process), "euler", 12), x)


@every_process
@pytest.mark.parametrize("solver", NoiseProcess.solvers)
def test_stops_run_from_the_noise_to_the_data(name: str, solver: str) -> None:
    process = process_of(name)
    for steps in (1, 2, 50):
        times = OwnSolver(process, solver, steps, None).times
        assert times.shape == (steps,)
        assert times.dtype == torch.float64
        assert (times.diff() < 0).all()
        assert 0.98 < float(times[0]) <= 1
        if steps == 50:
            assert float(times[-1]) < 0.021


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize("solver", NoiseProcess.solvers)
def test_clipping_reaches_every_solver(name: str, solver: str) -> None:
    """Data around 3: clipped to 1 or 2, or 3 as they are."""
    network = GaussianNetwork(process_of(name), [3.0], std=0.01)
    for largest in (1.0, 2.0):
        clipped = made(network, solver, 20, clip=largest)
        assert torch.allclose(clipped, torch.full_like(clipped, largest), atol=1e-5), "no noise at the end"
    assert (made(network, solver, 20) - 3).abs().max() < 0.2


@each_solver_once
def test_network_evaluations_are_counted_honestly_and_guidance_guides(name: str, solver: str) -> None:
    network = GaussianNetwork(process_of(name), [0.0, 0.1, 0.2])
    made(network, solver, 10)
    assert sum(network.calls) == 4 * SOLVERS[solver].evaluations(10)
    network.calls.clear()
    guided = made(network, solver, 10, labels=(0, 1), guidance=2.0)
    assert sum(network.calls) == 4 * SOLVERS[solver].evaluations(10, guided=True)
    # Away from 0.2 by twice the distance: classes 0.0 and 0.1 become -0.2 and 0.0.
    guidance_less = made(GaussianNetwork(process_of(name), [-0.2, 0.0, 0.2]), solver, 10, labels=(0, 1))
    torch.testing.assert_close(guided, guidance_less, rtol=1e-6, atol=1e-8)


@each_solver_once
def test_images_do_not_depend_on_the_batch_size(name: str, solver: str) -> None:
    torch.manual_seed(0)
    network = build_model("micro", channels=1, image_size=8, classes=3, label_dropout=0.1).eval()

    def images(**changes: Any) -> Tensor:
        request = Request(5, (1, 8, 8), solver, steps=4, labels=(0, 1), **changes)
        return torch.cat(list(generate(network, process_of(name), request)))

    one, three = images(batch=1), images(batch=3)
    assert one.dtype == torch.uint8
    # Convolutions of other batch sizes round differently.
    assert (one.int() - three.int()).abs().max() <= 1
    assert not torch.equal(one, images(seed=1))


def test_a_flow_that_counts_its_timesteps() -> None:
    process = stepwell.process("flow", timesteps=100)
    network = GaussianNetwork(process)
    times = OwnSolver(process, "euler", 100, None).times
    assert sorted(process.time(times).tolist()) == pytest.approx([10.0 * k for k in range(1, 101)])
    assert abs(float(made(network, "heun", 50, count=64).std()) / STD - 1) < 0.1
    with pytest.raises(InvalidParameter, match="101 denoising steps are more than the process's 100"):
        OwnSolver(process, "euler", 101, None)


@pytest.mark.parametrize("solver", sorted(set(DiscreteProcess.solvers) - set(NoiseProcess.solvers)))
def test_solvers_of_discrete_processes_are_refused(solver: str) -> None:
    with pytest.raises(Unsupported, match="use heun, euler"):
        make_solver(nn.Identity(), process_of("edm"), Request(1, SHAPE, solver))


def test_solvers_of_continuous_time_are_refused_by_discrete_processes() -> None:
    linear = stepwell.process("linear")
    for solver in ("euler", "ancestral"):
        with pytest.raises(Unsupported, match="use ddim, ddpm"):
            make_solver(nn.Identity(), linear, Request(1, SHAPE, solver))
    with pytest.raises(UnknownName, match="Did you mean 'heun'"):
        Request(1, SHAPE, "huen")


@pytest.mark.parametrize(
    "process", [case(name, quick=name == "edm") for name in ("flow:shift=3", "edm", "vp", "ve")]
)
def test_from_training_to_images(process: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trains, makes samples at the end, and images with guidance by a command; ddim means heun."""
    run, out = tmp_path / "run", tmp_path / "images.npz"
    words = ["model=micro", "steps=3", "batch=4", "samples=4", "sample_steps=4", "labels=true"]
    words += [
        "evaluate_images=4",
        "bands=2",
        "sample_every=0",
        f"process={process}",
        f"out={run}",
        "method=neyman",
    ]
    assert main(["train", "fashion16", *words]) == 0
    assert "samples are generated by heun: ddim needs discrete timesteps" in capsys.readouterr().out
    assert [path.suffix for path in (run / "samples").iterdir()] == [".png"]
    command = ["generate", str(run), "--out", str(out), "-n", "3", "--batch", "2", "--guidance", "2"]
    assert main(command) == 0
    assert "Images are generated by heun: ddim needs discrete timesteps" in capsys.readouterr().out
    with np.load(out) as found:
        assert found["images"].shape == (3, 16, 16, 1)
        assert found["labels"].tolist() == [0, 1, 2]
    refused = ["generate", str(run), "--out", str(tmp_path / "other.npz"), "--solver"]
    assert main([*refused, "unipc"]) == 2
    assert "use heun, euler" in capsys.readouterr().err


def test_a_recipe_whose_solver_does_not_serve_its_process() -> None:
    with pytest.raises(BadRecipe, match=r"solver=unipc cannot generate from vp: use heun, euler"):
        load("fashion16", ["process=vp", "solver=unipc"])
    with pytest.raises(BadRecipe, match="use ddim, ddpm"):
        load("fashion16", ["solver=euler"])
    assert load("fashion16", ["process=vp", "solver=euler"]).recipe.solver == "euler"


def test_a_run_is_scored_by_its_images_but_has_no_bits(tmp_path: Path) -> None:
    words = ["model=micro", "steps=1", "batch=4", "samples=0", "evaluate_images=4", "bands=2", "process=vp"]
    assert main(["train", "fashion16", *words, f"out={tmp_path / 'run'}"]) == 0
    found = score(trained(tmp_path / "run"), Effort(generated=40, steps=2, reference=60))
    assert found["fashion16_features"]["generated"] == 40
    assert found["fashion16_features"]["frechet_distance"] > 0
    assert found["objective/likelihood"] > 0
    assert "bits_per_dimension" not in found

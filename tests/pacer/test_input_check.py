"""Noise that is not the process's is refused with one message, and nothing else is."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks
from torch.nn.parallel import DistributedDataParallel

import stepwell
from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import per_example
from stepwell.pacer import Pacer
from stepwell.pacer.input_check import least_squares
from stepwell.pacer.probe_loop import ProbeLoss

SHAPE = (16, 2, 4, 4)
PROCESSES = {
    name: stepwell.process(name, **more)
    for name, more in {
        "linear": {},
        "cosine": {"prediction": "v"},
        "scaled-linear": {"prediction": "x0"},
        "quadratic": {},
        "flow": {},
        "edm": {},
        "vp": {},
        "ve": {},
    }.items()
}


class Network(nn.Module):
    """One convolution, which ignores the time; it can have more channels than the examples have."""

    def __init__(self, channels: int = 2) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, 2, 1)

    def forward(self, sample: Tensor, timestep: Any = None, other: Any = None) -> Tensor:
        output: Tensor = self.layer(sample)
        return output


def examples(shape: tuple[int, ...] = SHAPE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 0.5 * torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def times(low: float = 0.0, high: float = 1.0, count: int = 16) -> Tensor:
    return low + (high - low) * (torch.arange(count) + 0.5) / count


Corrupt = Callable[[Tensor, Tensor, Tensor], Tensor]


def watched(process: NoiseProcess, shown: Corrupt, network: nn.Module | None = None) -> ProbeLoss:
    """A host's loss_at that shows its network whatever `shown` makes of x0, noise and u."""
    called = Network() if network is None else network

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        return (called(shown(x0, noise, u), u).float() - noise).square().flatten(1).mean(1)

    return ProbeLoss(loss_at, called, process)


def seen_by(process: NoiseProcess) -> Corrupt:
    return lambda x0, noise, u: process.corrupt(x0, noise, u).input


def test_least_squares_recovers_the_two_coefficients() -> None:
    x0, noise = examples()
    a, s = torch.rand(16), torch.rand(16)
    found = least_squares(per_example(a, x0) * x0 + per_example(s, x0) * noise, x0, noise)
    torch.testing.assert_close(found.a, a, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.s, s, rtol=1e-4, atol=1e-5)
    assert found.residual.max() < 1e-9


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("low", [0.0, 0.3, 0.95])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_process_shows_is_its_own(name: str, low: float, dtype: torch.dtype) -> None:
    process, (x0, noise) = PROCESSES[name], examples()
    u = times(low, low + 0.05)

    def shown(x0: Tensor, noise: Tensor, u: Tensor) -> Tensor:
        return process.corrupt(x0, noise, u).input.to(dtype).float()

    watched(process, shown)(x0, noise, u, None)
    # The network's own preconditioning, or none, is another factor on all of it.
    watched(process, lambda x0, noise, u: process.corrupt(x0, noise, u).xt)(x0, noise, u, None)
    # And no timestep is so exact that the one beside it would be an error.
    if process.timesteps is not None:
        beside = (u + 1 / process.timesteps).clamp(0, 0.9999)
        watched(process, lambda x0, noise, _: shown(x0, noise, beside))(x0, noise, u, None)


@pytest.mark.parametrize("name", PROCESSES)
def test_a_reversed_time_is_refused_in_the_first_stratum_already(name: str) -> None:
    process, (x0, noise) = PROCESSES[name], examples()
    loss = watched(process, lambda x0, noise, u: process.corrupt(x0, noise, 1 - u).input)
    with pytest.raises(InvalidParameter, match=r"should be [\d.]+%\. u is 0 at data .* write 1 - u"):
        loss(x0, noise, times(0.0, 0.05), None)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (stepwell.process("linear"), stepwell.process("cosine")),
        (stepwell.process("cosine"), stepwell.process("linear")),
        (stepwell.process("flow"), stepwell.process("flow", shift=3)),
        (stepwell.process("flow"), stepwell.process("linear")),
        # diffusers keeps the betas, so that 100 timesteps end in other noise than 1000.
        (stepwell.process("linear"), stepwell.process_from(DDPMScheduler(num_train_timesteps=100))),
    ],
    ids=["cosine", "linear", "shift", "ddpm", "T=100"],
)
def test_another_schedule_is_refused_within_a_round(ours: NoiseProcess, theirs: NoiseProcess) -> None:
    (x0, noise), loss = examples(), watched(ours, seen_by(theirs))

    def a_round() -> None:
        for stratum in range(20):
            loss(x0, noise, times(stratum / 20, (stratum + 1) / 20), None)

    with pytest.raises(InvalidParameter, match=r"other noise than .* give the Pacer the scheduler"):
        a_round()


def silent(shown: Corrupt, network: nn.Module | None = None, shape: tuple[int, ...] = SHAPE) -> None:
    x0, noise = examples(shape)
    watched(PROCESSES["linear"], shown, network)(x0, noise, times(0, 0.05), None)


def wrong(x0: Tensor, noise: Tensor, u: Tensor) -> Tensor:
    return PROCESSES["linear"].corrupt(x0, noise, 1 - u).input


def test_what_cannot_be_known_is_not_said() -> None:
    right = seen_by(PROCESSES["linear"])
    # Noise of the host's own; an encoder inside; data scaled inside, with the right noise.
    silent(lambda x0, noise, u: wrong(x0, torch.roll(noise, 1, 0), u))
    silent(lambda x0, noise, u: wrong(x0.tanh(), noise, u) + 0.1)
    silent(lambda x0, noise, u: right(0.18215 * x0, noise, u))
    # A clean image or noise alone beside the noisy input, under any name.
    silent(lambda x0, noise, u: x0)
    silent(lambda x0, noise, u: noise)


def test_first_channels_are_looked_at_alone() -> None:
    mask = torch.ones(16, 1, 4, 4)
    right = seen_by(PROCESSES["linear"])
    silent(lambda x0, noise, u: torch.cat([right(x0, noise, u), mask], 1), Network(3))
    with pytest.raises(InvalidParameter, match="other noise"):
        silent(lambda x0, noise, u: torch.cat([wrong(x0, noise, u), mask], 1), Network(3))


def test_it_looks_under_autocast_and_then_no_more() -> None:
    x0, noise = examples()
    loss = watched(PROCESSES["linear"], seen_by(PROCESSES["linear"]))
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(30):
            loss(x0, noise, times(0, 0.05), None)
    network = loss._network
    assert network is not None
    assert not network._forward_pre_hooks
    loss._loss_at = watched(PROCESSES["linear"], wrong, network)._loss_at
    loss(x0, noise, times(0, 0.05), None)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("schedule", ["linear", "scaled_linear", "squaredcos_cap_v2"])
def test_ready_made_losses_of_diffusers_are_never_refused(prediction: str, schedule: str) -> None:
    for timesteps in (20, 1000):
        scheduler = DDPMScheduler(timesteps, beta_schedule=schedule, prediction_type=prediction)
        never_refused(stepwell.loss_at.diffusers(Network(), scheduler))


def test_other_ready_made_losses_are_never_refused() -> None:
    for shift in (1.0, 3.0):
        never_refused(stepwell.loss_at.diffusers(Network(), FlowMatchEulerDiscreteScheduler(shift=shift)))
    never_refused(stepwell.loss_at.edm(Preconditioned()))
    # The raw network inside is shown c_in x: another factor, the same angle.
    loss = stepwell.loss_at.edm(Preconditioned())
    never_refused(loss, loss.network.inside)


def never_refused(loss: Any, network: nn.Module | None = None) -> None:
    """Over all of time, a stratum at a time, and at both ends of it."""
    x0, noise = examples()
    checked = ProbeLoss(loss, loss.network if network is None else network, loss.process)
    for stratum in range(20):
        checked(x0, noise, times(stratum / 20, (stratum + 1) / 20), None)
    checked(x0, noise, torch.zeros(16), None)
    checked(x0, noise, torch.full((16,), 1 - 2**-24), None)


class Preconditioned(nn.Module):
    """EDM's D(x, sigma) around a raw network (Karras et al. 2022, Table 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Network()

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        s = per_example(sigma, x)
        seen = x / (s**2 + 0.25).sqrt()
        output: Tensor = 0.25 / (s**2 + 0.25) * x + 0.5 * s / (s**2 + 0.25).sqrt() * self.inside(seen, sigma)
        return output


def test_a_wrapper_for_many_processes_is_looked_into(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(Network())
        x0, noise = examples()
        watched(PROCESSES["linear"], seen_by(PROCESSES["linear"]), wrapped)(x0, noise, times(0, 0.05), None)
        with pytest.raises(InvalidParameter, match="other noise"):
            watched(PROCESSES["linear"], wrong, wrapped)(x0, noise, times(0, 0.05), None)
    finally:
        dist.destroy_process_group()


def test_a_compiled_network_is_looked_at_from_outside() -> None:
    compiled: Any = torch.compile(Network(), backend="eager")
    with pytest.raises(InvalidParameter, match="other noise"):
        silent(wrong, compiled)
    silent(seen_by(PROCESSES["linear"]), compiled)


class Loop:
    """A host's loop over 16 examples a step, which shows its network what `shown` makes of a pace."""

    def __init__(
        self, scheduler: Any, sampler: Any, shown: Callable[..., Tensor], given: bool = True
    ) -> None:
        self.network, self.shown = Network(), shown
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.0)
        network = self.network if given else None
        self.pacer = Pacer(sampler, scheduler, network=network).attach(self.optimizer)

    def call(self, x0: Tensor, noise: Tensor, pace: Any) -> Tensor:
        output: Tensor = self.network(self.shown(x0, noise, pace), pace.timesteps)
        return output

    def run(self, steps: int = 8, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            x0, noise = 0.5 * torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
            pace = self.pacer.draw(x0)
            self.call(x0, noise, pace).square().mean().backward()
            self.optimizer.step()


FLOW = FlowMatchEulerDiscreteScheduler(shift=3.0)
DDPM = DDPMScheduler()


def by_indices(indices: Callable[[Any], Tensor]) -> Callable[..., Tensor]:
    """As SD3 scripts do: sigmas at places in the scheduler's falling list."""

    def shown(x0: Tensor, noise: Tensor, pace: Any) -> Tensor:
        sigmas = FLOW.sigmas[indices(pace)].view(-1, 1, 1, 1)
        return (1 - sigmas) * x0 + sigmas * noise

    return shown


def by_timesteps(timesteps: Callable[[Any], Tensor]) -> Callable[..., Tensor]:
    return lambda x0, noise, pace: DDPM.add_noise(x0, noise, timesteps(pace))


@pytest.mark.parametrize("sampler", ["uniform", "logit-normal", "speed"])
def test_a_loop_that_counts_from_the_noise_is_told_so(sampler: str) -> None:
    Loop(FLOW, sampler, by_indices(lambda pace: pace.indices)).run()
    Loop(DDPM, sampler, by_timesteps(lambda pace: pace.timesteps)).run()
    with pytest.raises(InvalidParameter, match=r"counts time from noise to data.* pace\.indices"):
        Loop(FLOW, sampler, by_indices(lambda pace: 999 - pace.indices)).run()
    with pytest.raises(InvalidParameter, match="counts time from noise to data"):
        Loop(DDPM, sampler, by_timesteps(lambda pace: 999 - pace.timesteps)).run()


class ByKeywords(Loop):
    """Beside a text encoder that learns, too."""

    def call(self, x0: Tensor, noise: Tensor, pace: Any) -> Tensor:
        text = self.text(input=torch.ones(len(x0), 3)).sum() * 0
        output: Tensor = self.network(sample=self.shown(x0, noise, pace), timestep=pace.timesteps)
        return output + text

    text = nn.Linear(3, 3)


class Wrapped(Loop):
    """Inside a module that is given the clean examples."""

    def call(self, x0: Tensor, noise: Tensor, pace: Any) -> Tensor:
        class Wrapper(nn.Module):
            def __init__(self, loop: Loop) -> None:
                super().__init__()
                self.inner, self.shown = loop.network, loop.shown

            def forward(self, x0: Tensor) -> Tensor:
                output: Tensor = self.inner(self.shown(x0, noise, pace), pace.timesteps)
                return output

        output: Tensor = Wrapper(self)(x0)
        return output


@pytest.mark.parametrize("kind", [Loop, ByKeywords, Wrapped])
def test_a_network_that_was_not_given_is_found(kind: type[Loop]) -> None:
    kind(FLOW, "uniform", by_indices(lambda pace: pace.indices), given=False).run(12)
    loop = kind(FLOW, "uniform", by_indices(lambda pace: 999 - pace.indices), given=False)
    with pytest.raises(InvalidParameter, match="counts time from noise to data"):
        loop.run(12, shape=(16, 2, 8, 8))
    assert not _global_forward_pre_hooks
    assert not loop.network._forward_pre_hooks


def test_a_loop_that_ends_after_a_draw_leaves_no_hook() -> None:
    loop = Loop(DDPM, "uniform", by_timesteps(lambda pace: pace.timesteps), given=False)
    loop.pacer.draw(torch.zeros(SHAPE))
    assert _global_forward_pre_hooks
    del loop
    gc.collect()
    assert not _global_forward_pre_hooks


def test_a_network_compiled_in_place_is_not_compiled_again_and_again() -> None:
    loop = Loop(DDPM, "uniform", by_timesteps(lambda pace: pace.timesteps), given=False)
    traced = []
    loop.network.compile(backend=lambda graph, inputs: traced.append(1) or graph.forward)
    loop.run(12)
    assert len(traced) <= 2
    assert not _global_forward_pre_hooks


@pytest.mark.parametrize("sampler", ["uniform", "logit-normal"])
def test_times_taken_for_positions_are_told_so(sampler: str) -> None:
    with pytest.raises(InvalidParameter, match=r"timesteps are what the network is given, not positions"):
        Loop(FLOW, sampler, by_indices(lambda pace: pace.timesteps.long())).run()


@pytest.mark.parametrize("name", PROCESSES)
def test_no_loop_that_is_right_is_refused(name: str) -> None:
    process = PROCESSES[name]
    for seed in range(5):
        Loop(process, "uniform", lambda x0, noise, pace: process.corrupt(x0, noise, pace.u).input).run(
            seed=seed
        )


def test_inputs_that_have_nothing_to_do_with_x0_are_not_judged() -> None:
    one_end = stepwell.sampler("uniform", DDPM, within=(0.0, 0.2))
    for seed in range(10):
        Loop(DDPM, one_end, lambda x0, noise, pace: noise).run(seed=seed)
        Loop(DDPM, "uniform", lambda x0, noise, pace: noise).run(seed=seed)
        Loop(DDPM, "uniform", lambda x0, noise, pace: x0).run(seed=seed)
        Loop(DDPM, "uniform", lambda x0, noise, pace: torch.roll(x0, 1, 0) + noise).run(seed=seed)


def test_a_network_is_copied_and_pickled_as_ever() -> None:
    loop = Loop(DDPM, "uniform", by_timesteps(lambda pace: pace.timesteps))
    loop.run(1)
    copy.deepcopy(loop.network)
    torch.save(loop.network, io.BytesIO())
    loop.run(7)
    assert not loop.network._forward_pre_hooks

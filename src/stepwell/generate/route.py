"""The steps of one trajectory: a scheduler that is ready, and the times that the network is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.shapes import PerExample
from stepwell.generate.continuous import Network
from stepwell.generate.scheduler import scheduler_of, set_steps
from stepwell.processes.discrete import DiscreteProcess


@dataclass(frozen=True)
class Route:
    """From noise to data, one batch after the other: `start` forgets the one before."""

    scheduler: Any
    solver: str
    steps: int
    times: Tensor
    """[evaluations]: int64, or float32 where a solver stops between the timesteps of training."""
    eta: float = 0.0

    def follow(self, network: Network, noise: Tensor, generators: Sequence[Generator]) -> Tensor:
        """Images [B, C, H, W] from unit noise; `generators` make what noise is added on the way."""
        x = self.start(noise)
        for step in range(len(self.times)):
            shown, time = self.seen(x, step)
            x = self.step(network(shown, time), x, step, generators)
        return x

    def start(self, noise: Tensor) -> Tensor:
        """Unit noise [B, C, H, W] at the solver's scale."""
        set_steps(self.scheduler, self.steps)
        started: Tensor = noise * self.scheduler.init_noise_sigma
        return started

    def seen(self, x: Tensor, step: int) -> tuple[Tensor, PerExample]:
        """What the network is shown, [B, C, H, W], and told, [B]."""
        shown = self.scheduler.scale_model_input(x, self.scheduler.timesteps[step])
        return shown, self.times[step].to(x.device).expand(len(x))

    def step(self, output: Tensor, x: Tensor, step: int, generators: Sequence[Generator]) -> Tensor:
        """One step towards data, from the network's output [B, C or 2 C, H, W]."""
        more: dict[str, Any] = {}
        if self.solver in ("ddpm", "ddim"):
            more["generator"] = list(generators)
        if self.solver == "ddim":
            more["eta"] = self.eta
        if self.solver != "ddpm":
            # A learned variance is of DDPM's chain.
            output = output[:, : x.shape[1]]
        moved: Tensor = self.scheduler.step(output, self.scheduler.timesteps[step], x, **more).prev_sample
        return moved


def route_of(
    process: NoiseProcess,
    solver: str,
    steps: int,
    *,
    learned_variance: bool = False,
    clip: float | None = 1.0,
    eta: float = 0.0,
) -> Route:
    """`steps` steps of a solver through a process."""
    scheduler = scheduler_of(process, solver, learned_variance, clip)
    assert isinstance(process, DiscreteProcess)
    kept = process.alphas_cumprod()
    _check_steps(solver, steps, len(kept), scheduler.config.num_train_timesteps)
    if (solver == "ddpm" and steps < len(kept)) or (solver == "ddim" and len(kept) % steps):
        times = _evenly_spaced(len(kept), steps)
        shorter = DiscreteProcess(kept[times], process.prediction)
        scheduler = scheduler_of(shorter, solver, learned_variance, clip)
        set_steps(scheduler, steps)
        return Route(scheduler, solver, steps, times[scheduler.timesteps], eta)
    set_steps(scheduler, steps)
    return Route(scheduler, solver, steps, scheduler.timesteps, eta)


def _evenly_spaced(timesteps: int, steps: int) -> Tensor:
    """The timesteps [steps] of a shorter chain, which is then gone through whole (Nichol and Dhariwal 2021).

    diffusers' own shorter chains are not used where they go wrong: DDPM adds noise after the last step unless
    that is t = 0; DDIM goes from t to t - T // steps, which is not its own next timestep where steps do not
    divide T; and the rounding of some (29 or 31 of 1000) ends at t = -1.
    """
    return torch.arange(1, steps + 1, dtype=torch.float64).mul(timesteps / steps).round().long() - 1


def _check_steps(solver: str, steps: int, timesteps: int, usable: int) -> None:
    if steps > timesteps:
        raise InvalidParameter(f"{steps} denoising steps are more than the process's {timesteps} timesteps.")
    if solver == "heun" and steps < 2:
        raise InvalidParameter("heun spaces its noise levels between two ends: it needs 2 steps or more.")
    if solver in ("dpm-solver++", "unipc") and steps >= usable:
        raise InvalidParameter(
            f"{solver} steps between different timesteps, of which it uses {usable} here: "
            f"{usable - 1} steps at most, not {steps}."
        )

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
from stepwell.generate.scheduler import scheduler_of, set_steps
from stepwell.processes.discrete import DiscreteProcess


@dataclass(frozen=True)
class Route:
    """From noise to data; it has a state, so that every batch needs its own."""

    scheduler: Any
    solver: str
    times: Tensor
    """[evaluations]: int64, or float32 where a solver stops between the timesteps of training."""
    eta: float = 0.0

    def start(self, noise: Tensor) -> Tensor:
        """Unit noise [B, C, H, W] at the solver's scale."""
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
    clip: bool = True,
    eta: float = 0.0,
) -> Route:
    """`steps` steps of a solver through a process."""
    scheduler = scheduler_of(process, solver, learned_variance, clip)
    assert isinstance(process, DiscreteProcess)
    _check_steps(solver, steps, process.alphas_cumprod().numel(), scheduler.config.num_train_timesteps)
    if solver in ("ddpm", "ddim") and process.alphas_cumprod().numel() % steps:
        return _respaced(process, solver, steps, learned_variance, clip, eta)
    set_steps(scheduler, steps)
    return Route(scheduler, solver, scheduler.timesteps, eta)


def _respaced(
    process: DiscreteProcess, solver: str, steps: int, learned_variance: bool, clip: bool, eta: float
) -> Route:
    """All steps of the shorter chain through evenly spaced timesteps (Nichol and Dhariwal 2021).

    Where steps do not divide the timesteps, diffusers' DDIM goes from t to t - T // steps, which is not its
    own next timestep, and the rounding of some (29 or 31 of 1000) ends at t = -1.
    """
    kept = process.alphas_cumprod()
    times = torch.arange(1, steps + 1, dtype=torch.float64).mul(len(kept) / steps).round().long() - 1
    scheduler = scheduler_of(DiscreteProcess(kept[times], process.prediction), solver, learned_variance, clip)
    set_steps(scheduler, steps)
    return Route(scheduler, solver, times[scheduler.timesteps], eta)


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

"""Solvers of DDPM's chain: diffusers' schedulers, built from the same betas as training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    HeunDiscreteScheduler,
    UniPCMultistepScheduler,
)
from torch import Generator, Tensor

from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.generate.own_solvers import Network
from stepwell.processes.discrete import DiscreteProcess

_PREDICTIONS = {"eps": "epsilon", "x0": "sample", "v": "v_prediction"}
_LARGEST_SIGMA = {"heun": 80.0, "dpm-solver++": math.exp(5.1), "unipc": math.exp(5.1)}
"""Where solvers of the ODE start: Karras et al. 2022, Table 1; Lu et al.'s code clips log(a / s) at -5.1.

Cosine ends at sigma 20,000 and a zero-SNR process at infinity; above these values there is only noise, and
steps spent there are lost."""


def make_scheduler(
    process: NoiseProcess, solver: str, learned_variance: bool = False, clip: float | None = 1.0
) -> Any:
    """DDPM (Ho et al. 2020), DDIM (Song et al. 2021), Heun (Karras et al. 2022), DPM-Solver++ or UniPC."""
    kept = process.alphas_cumprod()
    process.require_solver(solver)
    if process.prediction == "eps" and float(kept[-1]) == 0:
        raise Unsupported(
            "the last timestep has no signal (zero_terminal_snr), and there the noise says nothing about the "
            "image: such a model must be trained with prediction=v or x0."
        )
    table = _below(process, _LARGEST_SIGMA[solver], solver) if solver in _LARGEST_SIGMA else process
    clipping: dict[str, Any] = {"clip_sample": clip is not None, "clip_sample_range": clip or 1.0}
    shared: dict[str, Any] = {
        "num_train_timesteps": table.timesteps,
        "trained_betas": table.betas().tolist(),
        "prediction_type": _PREDICTIONS[table.prediction],
    }
    if solver == "ddpm":
        variance = "learned_range" if learned_variance else "fixed_large"
        return DDPMScheduler(**shared, **clipping, variance_type=variance)
    if solver == "ddim":
        return DDIMScheduler(**shared, **clipping, set_alpha_to_one=True, timestep_spacing="trailing")
    if solver == "heun":
        with _quiet():
            return HeunDiscreteScheduler(**shared, **clipping, use_karras_sigmas=True)
    kind = DPMSolverMultistepScheduler if solver == "dpm-solver++" else UniPCMultistepScheduler
    scheduler = kind(**shared, thresholding=clip is not None, final_sigmas_type="zero")
    if clip is not None:
        # Dynamic thresholding with a fixed threshold is clipping; the quantile that it computes first changes
        # nothing and refuses batches of more than 16 million values.
        scheduler._threshold_sample = partial(torch.clamp, min=-clip, max=clip)
    return scheduler


@contextmanager
def _quiet() -> Iterator[None]:
    """Without NumPy 2's warning about np.array(tensor), which diffusers calls."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


def _below(process: NoiseProcess, sigma: float, solver: str) -> DiscreteProcess:
    """The first timesteps of a process, up to a noise level relative to the signal."""
    kept = process.alphas_cumprod()
    count = int((1 - kept <= sigma**2 * kept).sum())
    if count < 2:
        raise Unsupported(
            f"{solver} needs two timesteps with at most {sigma:.0f} times as much noise as signal, and "
            f"{process} has {count}: use ddim or ddpm."
        )
    return DiscreteProcess(kept[:count], process.prediction)


class DiffusersSolver:
    """`steps` steps of a named solver through DDPM's chain.

    `eta` is DDIM's noise, `clip` the largest value of a predicted x0.
    """

    def __init__(
        self,
        process: NoiseProcess,
        name: str,
        steps: int,
        *,
        learned_variance: bool = False,
        clip: float | None = 1.0,
        eta: float = 0.0,
    ) -> None:
        self.name, self.steps, self.eta = name, steps, eta
        self.scheduler = make_scheduler(process, name, learned_variance, clip)
        kept = process.alphas_cumprod()
        _check_steps(name, steps, len(kept), self.scheduler.config.num_train_timesteps)
        shortened = (name == "ddpm" and steps < len(kept)) or (name == "ddim" and len(kept) % steps)
        if shortened:
            chosen = _evenly_spaced(len(kept), steps)
            shorter = DiscreteProcess(kept[chosen], process.prediction)
            self.scheduler = make_scheduler(shorter, name, learned_variance, clip)
        self._restart()
        timesteps: Tensor = self.scheduler.timesteps
        self.times = chosen[timesteps] if shortened else timesteps
        """[evaluations]: int64, or float32 where a solver stops between the timesteps of training."""

    def solve(self, network: Network, noise: Tensor, generators: Sequence[Generator]) -> Tensor:
        """Images [B, C, H, W] from unit noise; image i's generator draws the noise that is added to it."""
        self._restart()
        x: Tensor = noise * self.scheduler.init_noise_sigma
        extra: dict[str, Any] = {"generator": list(generators)} if self.name in ("ddpm", "ddim") else {}
        if self.name == "ddim":
            extra["eta"] = self.eta
        for time, timestep in zip(self.times, self.scheduler.timesteps, strict=True):
            scaled = self.scheduler.scale_model_input(x, timestep)
            output = network(scaled, time.to(x.device).expand(len(x)))
            if self.name != "ddpm":
                # Only DDPM's own step has a use for a learned variance.
                output = output[:, : x.shape[1]]
            x = self.scheduler.step(output, timestep, x, **extra).prev_sample
        return x

    def _restart(self) -> None:
        """Forget the last batch."""
        with _quiet():
            self.scheduler.set_timesteps(self.steps)


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

"""A process as a diffusers scheduler, built from the same table it was trained with."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
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

from stepwell.core import require
from stepwell.core.errors import Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.generate.solvers import DISCRETE, SOLVERS
from stepwell.processes.discrete import DiscreteProcess

_PREDICTIONS = {"eps": "epsilon", "x0": "sample", "v": "v_prediction"}
_LARGEST_SIGMA = {"heun": 80.0, "dpm-solver++": math.exp(5.1), "unipc": math.exp(5.1)}
"""Where the solvers of the ODE start: Karras et al. 2022, Table 1; Lu et al.'s code clips log(a / s) at -5.1.

Cosine ends at sigma 20,000 and a zero-SNR process at infinity; above these values there is only noise, and
steps spent there are lost."""

_INSTEAD = {"euler": "ddim, which takes the same steps", "ancestral": "ddpm"}


def scheduler_of(
    process: NoiseProcess, solver: str, learned_variance: bool = False, clip: float | None = 1.0
) -> Any:
    """DDPM (Ho et al. 2020), DDIM (Song et al. 2021), Heun (Karras et al. 2022), DPM-Solver++ or UniPC."""
    table = _checked(process, solver)
    if solver in _LARGEST_SIGMA:
        table = _below(table, _LARGEST_SIGMA[solver], solver)
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


def set_steps(scheduler: Any, steps: int) -> None:
    """Make a scheduler ready for a trajectory of so many steps."""
    with _quiet():
        scheduler.set_timesteps(steps)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without NumPy 2's complaint about np.array(tensor), which diffusers calls and torch has to answer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


def _checked(process: NoiseProcess, solver: str) -> DiscreteProcess:
    require.one_of("solver", solver, SOLVERS)
    if not isinstance(process, DiscreteProcess):
        raise Unsupported(
            f"{solver} generates from discrete processes (linear, cosine, quadratic, scaled-linear), "
            f"and this model was trained on {process}."
        )
    if solver not in DISCRETE:
        raise Unsupported(
            f"{solver} generates where time is continuous (flow, edm, vp, ve), and this model was trained on "
            f"{process}: use {_INSTEAD.get(solver, 'ddim')}, or another of {', '.join(DISCRETE)}."
        )
    if process.prediction == "eps" and float(process.alphas_cumprod()[-1]) == 0:
        raise Unsupported(
            "the last timestep has no signal (zero_terminal_snr), and there the noise says nothing about the "
            "image: such a model must be trained with prediction=v or x0."
        )
    return process


def _below(process: DiscreteProcess, sigma: float, solver: str) -> DiscreteProcess:
    """The first timesteps of a process, up to a noise level relative to the signal."""
    kept = process.alphas_cumprod()
    count = int((1 - kept <= sigma**2 * kept).sum())
    if count < 2:
        raise Unsupported(
            f"{solver} needs two timesteps with at most {sigma:.0f} times as much noise as signal, and "
            f"{process} has {count}: use ddim or ddpm."
        )
    return DiscreteProcess(kept[:count], process.prediction)

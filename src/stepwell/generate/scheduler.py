"""A process as a diffusers scheduler, built from the same table it was trained with."""

from __future__ import annotations

from typing import Any

from diffusers import DDIMScheduler, DDPMScheduler

from stepwell.core import require
from stepwell.core.errors import Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.generate.solvers import SOLVERS
from stepwell.processes.discrete import DiscreteProcess

_PREDICTIONS = {"eps": "epsilon", "x0": "sample", "v": "v_prediction"}


def scheduler_of(
    process: NoiseProcess, solver: str, learned_variance: bool = False, clip: bool = True
) -> Any:
    """DDPM's ancestral sampling (Ho et al. 2020) or DDIM's (Song et al. 2021)."""
    require.one_of("solver", solver, SOLVERS)
    if not isinstance(process, DiscreteProcess):
        raise Unsupported(
            f"{solver} generates from discrete processes (linear, cosine, quadratic, scaled-linear), "
            f"and this model was trained on {process}."
        )
    shared: dict[str, Any] = {
        "num_train_timesteps": process.timesteps,
        "trained_betas": process.betas().tolist(),
        "prediction_type": _PREDICTIONS[process.prediction],
        "clip_sample": clip,
    }
    if solver == "ddim":
        return DDIMScheduler(**shared, set_alpha_to_one=True, timestep_spacing="trailing")
    return DDPMScheduler(**shared, variance_type="learned_range" if learned_variance else "fixed_large")

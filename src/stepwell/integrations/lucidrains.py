"""`loss_at` of denoising-diffusion-pytorch's GaussianDiffusion, which takes `times`."""

from __future__ import annotations

import random
from typing import Any

from torch import Tensor

from stepwell.core.errors import Unsupported
from stepwell.core.tensors import PerExample
from stepwell.loss_at import NetworkLoss, network_arguments
from stepwell.processes.scheduler import process_from


def loss_at(diffusion: Any) -> NetworkLoss:
    """`diffusion(images, times=..., loss_reduction="none")` at chosen times and noise.

    Its `loss_weight` turns the loss of any objective into that of the noise, so the process predicts noise.
    """
    if not hasattr(diffusion, "num_timesteps") or not hasattr(diffusion, "alphas_cumprod"):
        raise Unsupported(
            f"{type(diffusion).__name__} has no discrete timesteps: this is for GaussianDiffusion of "
            "denoising-diffusion-pytorch, whose forward takes times= and loss_reduction= (2.3.4 does)."
        )
    process = process_from(diffusion)

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        args, kwargs = network_arguments(condition)
        # A copy: offset noise is added in place.
        kwargs |= {"noise": noise.clone(), "times": process.index(u), "loss_reduction": "none"}
        # Self-conditioning draws from Python's own generator, which forking torch's does not cover.
        state = random.getstate()
        try:
            return diffusion(x0, *args, **kwargs)  # type: ignore[no-any-return]
        finally:
            random.setstate(state)

    return NetworkLoss(process, diffusion.model, losses)

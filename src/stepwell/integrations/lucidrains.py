"""denoising-diffusion-pytorch's GaussianDiffusion, which takes `times` and gives one loss for each image."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stepwell.core.errors import Unsupported
from stepwell.core.shapes import PerExample
from stepwell.loss_at import ReadyLoss, arguments
from stepwell.processes.discrete import DiscreteProcess
from stepwell.processes.scheduler import process_from


def loss_at(diffusion: Any) -> ReadyLoss:
    """`diffusion(images, times=..., loss_reduction="none")` at chosen times and noise.

    Its `loss_weight` turns the loss of any objective into that of the noise, so that is the process.
    """
    if not hasattr(diffusion, "num_timesteps") or not hasattr(diffusion, "alphas_cumprod"):
        raise Unsupported(
            f"{type(diffusion).__name__} has no discrete timesteps: this is for GaussianDiffusion of "
            "denoising-diffusion-pytorch 2.3 or newer, whose forward takes times= and loss_reduction=."
        )
    process = process_from(diffusion)
    assert isinstance(process, DiscreteProcess)

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        args, kwargs = arguments(condition)
        # A copy: offset noise is added in place.
        given = {**kwargs, "noise": noise.clone(), "times": process.index(u), "loss_reduction": "none"}
        found: PerExample = diffusion(x0, *args, **given)
        return found

    return ReadyLoss(process, diffusion.model, losses)

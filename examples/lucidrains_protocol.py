"""The interface of denoising-diffusion-pytorch's GaussianDiffusion: `forward(img, times=, loss_reduction=)`.

A minimal rewrite for the example; the package has the rest.
"""

from __future__ import annotations

import torch
from fashion import images
from torch import Tensor, nn


class GaussianDiffusion(nn.Module):
    """v prediction of images in [0, 1]; its `loss_weight` makes that the loss of the noise."""

    alphas_cumprod: Tensor
    loss_weight: Tensor

    def __init__(self, model: nn.Module, timesteps: int = 1000) -> None:
        super().__init__()
        self.model, self.num_timesteps = model, timesteps
        places = torch.linspace(-3, 3, timesteps + 1, dtype=torch.float64).sigmoid()
        betas = 1 - (1 - places[1:]) / (1 - places[:-1])
        self.register_buffer("alphas_cumprod", (1 - betas.clamp(max=0.999)).cumprod(0).float())
        self.register_buffer("loss_weight", self.alphas_cumprod.clone())

    def forward(
        self,
        img: Tensor,
        times: Tensor | None = None,
        noise: Tensor | None = None,
        loss_reduction: str = "mean",
    ) -> Tensor:
        """The loss of images [B, C, H, W], or one for each: [B]."""
        times = torch.randint(0, self.num_timesteps, (len(img),)) if times is None else times
        x = 2 * img - 1
        noise = torch.randn_like(x) if noise is None else noise
        kept = self.alphas_cumprod[times][:, None, None, None]
        signal, rest = kept.sqrt(), (1 - kept).sqrt()
        output = self.model(signal * x + rest * noise, times)
        losses = (output - (signal * noise - rest * x)).square().flatten(1).mean(1)
        losses = losses * self.loss_weight[times]
        return losses if loss_reduction == "none" else losses.mean()


@torch.no_grad()
def held_out_loss(diffusion: GaussianDiffusion) -> float:
    """At fixed timesteps with fixed noise."""
    x, generator = images(256, held_out=True), torch.Generator().manual_seed(0)
    times, noise = torch.arange(256) * 1000 // 256, torch.randn(x.shape, generator=generator)
    return diffusion((x + 1) / 2, times=times, noise=noise).item()

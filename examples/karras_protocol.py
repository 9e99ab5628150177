"""The interfaces of EDM (a preconditioned network, a loss object) and of k-diffusion (a Denoiser, a density).

A minimal rewrite for the examples; the repositories have the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SIGMA_DATA = 0.5


def log_normal(shape: list[int], mean: float = -1.2, std: float = 1.2, device: Any = "cpu") -> Tensor:
    """Noise levels whose logarithm is normal."""
    return (torch.randn(shape, device=device) * std + mean).exp()


class EDMLoss:
    """loss_fn(net, images, labels, augment_pipe) -> weighted losses [B, C, H, W]."""

    def __call__(
        self,
        net: Callable[..., Tensor],
        images: Tensor,
        labels: Tensor | None = None,
        augment_pipe: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        sigma = log_normal([len(images), 1, 1, 1])
        weight = (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2
        y, augment_labels = (images, None) if augment_pipe is None else augment_pipe(images)
        denoised = net(y + torch.randn_like(y) * sigma, sigma, labels, augment_labels=augment_labels)
        return weight * (denoised - y) ** 2


class EDMPrecond(nn.Module):
    """D(x, sigma, class_labels) around a network F(c_in x, c_noise, labels)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        x: Tensor,
        sigma: Tensor,
        class_labels: Tensor | None = None,
        augment_labels: Tensor | None = None,
    ) -> Tensor:
        level = sigma.reshape(-1, 1, 1, 1)
        total = (level**2 + SIGMA_DATA**2).sqrt()
        output = self.model(x / total, level.log().flatten() / 4, class_labels)
        return SIGMA_DATA**2 / total**2 * x + level * SIGMA_DATA / total * output


class Denoiser(nn.Module):
    """k-diffusion's: `loss(input, noise, sigma)` [B] with a weighting of sigma, D(x, sigma) when called."""

    def __init__(self, inner_model: nn.Module) -> None:
        super().__init__()
        self.inner_model = inner_model
        self.weighting: Callable[[Tensor], Tensor] = torch.ones_like

    def loss(self, input: Tensor, noise: Tensor, sigma: Tensor, **kwargs: Any) -> Tensor:
        level = sigma[:, None, None, None]
        total, noised = (level**2 + SIGMA_DATA**2).sqrt(), input + noise * level
        target = (input - SIGMA_DATA**2 / total**2 * noised) / (level * SIGMA_DATA / total)
        output = self.inner_model(noised / total, sigma.log() / 4, **kwargs)
        return (output - target).square().flatten(1).mean(1) * self.weighting(sigma)

    def forward(self, input: Tensor, sigma: Tensor, **kwargs: Any) -> Tensor:
        level = sigma[:, None, None, None]
        total = (level**2 + SIGMA_DATA**2).sqrt()
        output = self.inner_model(input / total, sigma.log() / 4, **kwargs)
        return SIGMA_DATA**2 / total**2 * input + level * SIGMA_DATA / total * output


@torch.no_grad()
def held_out_loss(denoiser: Callable[..., Tensor], images: Tensor, *labels: Tensor) -> float:
    """EDM's weighted loss at fixed noise levels, one for each quantile of its density."""
    generator, count = torch.Generator().manual_seed(0), len(images)
    places = torch.special.ndtri((torch.arange(count) + 0.5) / count)
    sigma = (places * 1.2 - 1.2).exp()
    level = sigma[:, None, None, None]
    noised = images + torch.randn(images.shape, generator=generator) * level
    weight = (level**2 + SIGMA_DATA**2) / (level * SIGMA_DATA) ** 2
    return (weight * (denoiser(noised, sigma, *labels) - images) ** 2).mean().item()

"""The interfaces of guided-diffusion that DiT shares: a diffusion with `training_losses`, schedule samplers.

A minimal rewrite for the examples; the repositories have the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from fashion import images, labels
from torch import Tensor, nn


class GaussianDiffusion:
    """Noise prediction on a linear schedule of 1000 timesteps."""

    def __init__(self) -> None:
        self.betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64).numpy()
        self.alphas_cumprod = (1 - torch.from_numpy(self.betas)).cumprod(0).numpy()
        self.num_timesteps = len(self.betas)

    def training_losses(
        self,
        model: nn.Module,
        x_start: Tensor,
        t: Tensor,
        model_kwargs: dict[str, Any] | None = None,
        noise: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """{"loss": [B]} of x_start [B, ...] at timesteps t [B]."""
        noise = torch.randn_like(x_start) if noise is None else noise
        kept = torch.from_numpy(self.alphas_cumprod).float()[t][:, None, None, None]
        output = model(kept.sqrt() * x_start + (1 - kept).sqrt() * noise, t, **(model_kwargs or {}))
        return {"loss": (noise - output).square().mean((1, 2, 3))}


class ScheduleSampler(ABC):
    """sample(batch_size, device) -> timesteps, weights."""

    @abstractmethod
    def sample(self, batch_size: int, device: Any) -> tuple[Tensor, Tensor]: ...


class UniformSampler(ScheduleSampler):
    """Uniform timesteps."""

    def __init__(self, diffusion: GaussianDiffusion) -> None:
        self.count = diffusion.num_timesteps

    def sample(self, batch_size: int, device: Any) -> tuple[Tensor, Tensor]:
        return torch.randint(0, self.count, (batch_size,)), torch.ones(batch_size)


class LossAwareSampler(ScheduleSampler):
    """One that the training loop reports its losses to."""

    @abstractmethod
    def update_with_local_losses(self, local_ts: Tensor, local_losses: Tensor) -> None: ...


class MixedPrecisionTrainer:
    """Backward pass and update in full precision; `optimize` returns whether there was an update."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.master_params = list(model.parameters())

    def zero_grad(self) -> None:
        self.model.zero_grad()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def optimize(self, opt: torch.optim.Optimizer) -> bool:
        opt.step()
        return True


@torch.no_grad()
def held_out_loss(model: nn.Module, diffusion: GaussianDiffusion) -> float:
    """At fixed timesteps with fixed noise."""
    x, generator = images(256, held_out=True), torch.Generator().manual_seed(0)
    noise = torch.randn(x.shape, generator=generator)
    condition = {"y": labels(256, held_out=True)}
    losses = diffusion.training_losses(model, x, torch.arange(256) * 1000 // 256, condition, noise)
    return losses["loss"].mean().item()

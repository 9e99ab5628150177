"""The network of examples whose hosts have none: a few convolutions, given time and perhaps a label."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from fashion import images
from torch import Tensor, nn

EMBEDDING = 64


class SmallNetwork(nn.Module):
    """[B, 1, 16, 16] at times [B], with labels [B] if it has classes -> [B, 1, 16, 16]."""

    def __init__(self, time_scale: float = 1.0, classes: int = 0, width: int = 32) -> None:
        super().__init__()
        self.time_scale = time_scale
        self.labels = nn.Embedding(classes, EMBEDDING) if classes else None
        self.into = nn.Conv2d(4, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.films = nn.ModuleList(nn.Linear(EMBEDDING, 2 * width) for _ in range(4))
        self.out = nn.Conv2d(width, 4, 3, padding=1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, time: Tensor, y: Tensor | None = None) -> Tensor:
        embedding = self._embedded(time.reshape(-1).float() / self.time_scale)
        if self.labels is not None and y is not None:
            embedding = embedding + self.labels(y)
        h = self.into(F.pixel_unshuffle(x, 2))
        for block, film in zip(self.blocks, self.films, strict=True):
            scale, shift = film(embedding)[:, :, None, None].chunk(2, dim=1)
            h = h + block(F.silu(F.group_norm(h, 8) * (1 + scale) + shift))
        return F.pixel_shuffle(self.out(F.silu(h)), 2)

    def _embedded(self, time: Tensor) -> Tensor:
        """[B, 64]: sines and cosines of several frequencies."""
        angles = time[:, None] * torch.logspace(0, 2, EMBEDDING // 2, device=time.device)
        return torch.cat([angles.sin(), angles.cos()], dim=1)


@torch.no_grad()
def held_out_loss(network: nn.Module, scheduler: Any) -> float:
    """At fixed timesteps with fixed noise: random ones would show the timesteps, not the training."""
    x0, generator = images(256, held_out=True), torch.Generator().manual_seed(0)
    timesteps, noise = torch.arange(256) * 1000 // 256, torch.randn(x0.shape, generator=generator)
    return F.mse_loss(network(scheduler.add_noise(x0, noise, timesteps), timesteps), noise).item()

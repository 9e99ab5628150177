"""The interface of SiT's Transport on a linear path: time 0 is noise, 1 is data, drawn inside the loss.

A minimal rewrite for the example; the repository has the rest.
"""

from __future__ import annotations

import enum
from typing import Any

import torch
from fashion import images, labels
from torch import Tensor, nn


class ModelType(enum.Enum):
    """What the network predicts."""

    NOISE, SCORE, VELOCITY = 1, 2, 3


class WeightType(enum.Enum):
    """The weight of its loss."""

    NONE, VELOCITY, LIKELIHOOD = 1, 2, 3


class ICPlan:
    """x_t = t x1 + (1 - t) x0, from noise x0 to data x1."""

    def plan(self, t: Tensor, x0: Tensor, x1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """t, x_t and its velocity."""
        part = t.view(-1, *[1] * (x1.dim() - 1))
        return t, part * x1 + (1 - part) * x0, x1 - x0


class Transport:
    """What is predicted, on which path."""

    def __init__(
        self, model_type: ModelType = ModelType.VELOCITY, loss_type: WeightType = WeightType.NONE
    ) -> None:
        self.path_sampler = ICPlan()
        self.model_type, self.loss_type = model_type, loss_type
        self.train_eps = self.sample_eps = 0.0 if model_type is ModelType.VELOCITY else 1e-3

    def check_interval(self, train_eps: float, sample_eps: float) -> tuple[float, float]:
        """The ends of time in training."""
        return (0, 1) if self.model_type is ModelType.VELOCITY else (train_eps, 1 - train_eps)

    def sample(self, x1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """t [B], noise x0 and data x1 [B, ...]."""
        x0 = torch.randn_like(x1)
        start, end = self.check_interval(self.train_eps, self.sample_eps)
        return (torch.rand((len(x1),)) * (end - start) + start).to(x1), x0, x1

    def training_losses(
        self, model: nn.Module, x1: Tensor, model_kwargs: dict[str, Any] | None = None
    ) -> dict[str, Tensor]:
        """{"loss": [B], "pred"} of data x1 [B, ...]."""
        t, x0, x1 = self.sample(x1)
        t, xt, ut = self.path_sampler.plan(t, x0, x1)
        output = model(xt, t, **(model_kwargs or {}))
        noise_share = (1 - t).view(-1, *[1] * (x1.dim() - 1))
        if self.model_type is ModelType.VELOCITY:
            error = output - ut
        else:
            error = output - x0 if self.model_type is ModelType.NOISE else output * noise_share + x0
            if self.loss_type is WeightType.VELOCITY:
                # v = (x_t - x0) / t: an error of the noise is 1 / t as large in the velocity.
                error = error / (1 - noise_share)
        return {"loss": error.square().flatten(1).mean(1), "pred": output}


@torch.no_grad()
def held_out_loss(model: nn.Module) -> float:
    """At fixed times with fixed noise."""
    x1, generator = images(256, held_out=True), torch.Generator().manual_seed(0)
    t, noise = (torch.arange(256) + 0.5) / 256, torch.randn(x1.shape, generator=generator)
    part = t[:, None, None, None]
    output = model(part * x1 + (1 - part) * noise, t, labels(256, held_out=True))
    loss: Tensor = (output - (x1 - noise)).square().mean()
    return loss.item()

"""Any diffusers-style network as a denoiser: labels, extra input channels, learned variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stepwell.core.errors import InvalidParameter
from stepwell.core.shapes import PerExample


@dataclass(frozen=True)
class Condition:
    """What the network is told beside time."""

    labels: PerExample | None = None
    """[B] int64; `classes` is the label of no class, for guidance."""
    channels: Tensor | None = None
    """[B, E, H, W]: extra input, such as a low-resolution image."""


UNCONDITIONAL = Condition()


class Answer(NamedTuple):
    """What a network returns, under diffusers' name."""

    sample: Tensor
    """[B, C, H, W]"""


class Denoiser(nn.Module):
    """A network (sample, timestep, class_labels) -> .sample, called as the objective calls it."""

    def __init__(
        self, network: Any, classes: int = 0, label_dropout: float = 0.0, learned_variance: bool = False
    ) -> None:
        super().__init__()
        self.network, self.classes, self.label_dropout = network, classes, label_dropout
        self.learned_variance = learned_variance

    def forward(self, x: Tensor, time: PerExample, condition: Condition | None = None) -> Tensor:
        """The network's output [B, C, H, W], or [B, 2 C, H, W] with a learned variance."""
        told = condition or UNCONDITIONAL
        seen = x if told.channels is None else torch.cat([x, told.channels.to(x.dtype)], dim=1)
        output: Tensor = self.network(seen, time, class_labels=self._labels(told, len(x), x.device)).sample
        return output

    def _labels(self, condition: Condition, count: int, device: torch.device) -> Tensor | None:
        if self.classes == 0:
            return None
        if condition.labels is None:
            return torch.full((count,), self.classes, device=device)
        if condition.labels.shape != (count,):
            raise InvalidParameter(
                f"{count} examples need {count} labels, not shape {tuple(condition.labels.shape)}."
            )
        if not (self.training and self.label_dropout):
            return condition.labels
        dropped = torch.rand(count, device=device) < self.label_dropout
        return torch.where(dropped, self.classes, condition.labels)

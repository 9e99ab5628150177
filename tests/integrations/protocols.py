"""What tests of hosts' protocols share: a network, a batch, quick samplers, and the way to the examples."""

from __future__ import annotations

import sys
from typing import Any

import torch
from hosts import EXAMPLES
from torch import Tensor, nn

# Transcriptions of the protocols stand beside the examples that use them.
sys.path.append(str(EXAMPLES))

QUICK = {"every_steps": 1, "strata": 3, "images": 4}


class Tiny(nn.Module):
    """[B, 1, 4, 4] -> the same; says what the time is worth to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([0.3, 0.1]))

    def forward(self, x: Tensor, time: Tensor, y: Tensor | None = None, **more: Any) -> Tensor:
        embedding = time.reshape(-1, 1, 1, 1).to(x) / (1 + time.abs().max())
        return self.gain[0] * x + self.gain[1] * embedding + (0 if y is None else 0.1 * y.view(-1, 1, 1, 1))


def batch(seed: int = 0, count: int = 8) -> Tensor:
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))

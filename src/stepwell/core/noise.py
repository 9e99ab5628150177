"""The noise of a micro-batch, a function of its tick: independent, or opposite for neighbours in time."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick

COUPLINGS = ("independent", "paired")
"""How the noises of a micro-batch hang together; each by itself is normal in any case."""


def normal(x0: Tensor, tick: Tick) -> Tensor:
    """Independent noise like x0."""
    generator = tick.generator("noise", x0.device)
    return torch.randn(x0.shape, generator=generator, device=x0.device, dtype=x0.dtype)


def opposite_neighbours(noise: Tensor, u: PerExample) -> Tensor:
    """The noise [B, ...] in which, by rising time, every second example has the opposite of the one before.

    If B is odd, the last one keeps its own.
    """
    order = u.argsort(stable=True)
    first, second = order[:-1:2], order[1::2]
    return noise.index_copy(0, second, -noise.index_select(0, first))

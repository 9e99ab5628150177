"""Draws and noise as functions of an example's place in the global batch: then any world trains the same."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from stepwell.core.tick import Tick, uniforms
from stepwell.pacer.pace import Pace


def uniform(tick: Tick, stream: str, count: int, device: torch.device | str = "cpu") -> Tensor:
    """This rank's part of what a single process would draw."""
    whole = uniforms(replace(tick, rank=0, world=1).key(stream), count * tick.world, device)
    return whole[count * tick.rank : count * (tick.rank + 1)]


def noise_like(pace: Pace, x0: Tensor) -> Tensor:
    """This rank's part of a single process's noise."""
    tick, generator = pace.tick, replace(pace.tick, rank=0, world=1).generator("noise")
    whole = torch.randn((len(x0) * tick.world, *x0.shape[1:]), generator=generator)
    return whole[len(x0) * tick.rank : len(x0) * (tick.rank + 1)]

"""Whether two processes are one: a network of the one can be trained on, or measured by, the other."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core.process import NoiseProcess


def agree(one: NoiseProcess, other: NoiseProcess, *, told: bool = False) -> bool:
    """Whether both have the same noise and targets at all times; `told`: and show networks the same."""
    if one.timesteps != other.timesteps:
        return False
    u = torch.linspace(0.05, 0.95, 19)
    both = zip(_algebra(one, u, told), _algebra(other, u, told), strict=True)
    return all(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5) for ours, theirs in both)


def _algebra(process: NoiseProcess, u: Tensor, told: bool) -> tuple[Tensor, ...]:
    noise = (*process.scales(u), *process.target_mix(u))
    shown = (process.input_scale(u), process.time(u)) if told else ()
    return tuple(values.double() for values in (*noise, *shown))

"""Images and times as tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stepwell.core.shapes import PerExample


def patchify(images: Tensor, patch: int) -> Tensor:
    """[B, C, H, W] -> [B, (H / p) (W / p), C p p], row by row."""
    blocks: Tensor = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # [B, C, rows, p, columns, p]
    return blocks.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(tokens: Tensor, patch: int, rows: int) -> Tensor:
    """The inverse of `patchify`: [B, N, C p p] -> [B, C, H, W]."""
    # [B, rows, columns, C, p, p]
    blocks: Tensor = tokens.unflatten(2, (-1, patch, patch)).unflatten(1, (rows, -1))
    return blocks.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def sinusoids(time: PerExample, width: int) -> Tensor:
    """[B, width] cosines and sines of time, periods 2 pi to 20000 pi (Vaswani et al. 2017).

    Any real time has a value: discrete steps are whole numbers, flows and EDM have all of them.
    """
    half = width // 2
    exponents = torch.arange(half, device=time.device, dtype=torch.float32) / half
    angles = time.to(torch.float32)[:, None] * torch.exp(-math.log(10_000) * exponents)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)

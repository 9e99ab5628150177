"""Matrices of estimates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stepwell.analyze.jackknife import jackknife

Matrix = tuple[tuple[float, ...], ...]


def estimated(statistic: Callable[[Tensor], Tensor], rounds: int) -> tuple[Tensor, Tensor]:
    """Values and half intervals of a matrix-valued statistic."""
    shape = statistic(torch.arange(rounds)).shape
    found = jackknife(lambda chosen: statistic(chosen).flatten(), rounds)
    values = torch.tensor([(each.value, each.high - each.value) for each in found], dtype=torch.float64)
    return values[:, 0].view(shape), values[:, 1].view(shape)


def rows(matrix: Tensor) -> Matrix:
    """For JSON and frozen results."""
    return tuple(tuple(row) for row in matrix.tolist())

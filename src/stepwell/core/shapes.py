"""Names for the two shapes that everything here has: one value per example, or one example."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

PerExample: TypeAlias = Tensor
"""[B]: one value per example."""


def per_example(values: PerExample, like: Tensor) -> Tensor:
    """`values` [B] as [B, 1, ..., 1], so that it multiplies the examples of `like` [B, ...]."""
    return values.reshape(-1, *([1] * (like.dim() - 1)))

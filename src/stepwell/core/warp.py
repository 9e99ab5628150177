"""Monotone maps of unit time onto itself or a part of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import inside
from stepwell.core.errors import InvalidParameter

_NARROWEST = 1e-6


class Warp(ABC):
    """A rising map of u with its inverse; `inside` tells which u have one."""

    @abstractmethod
    def forward(self, u: Tensor) -> Tensor: ...
    @abstractmethod
    def inverse(self, u: Tensor) -> Tensor: ...
    @abstractmethod
    def rate(self, u: Tensor) -> Tensor:
        """d forward / du."""

    @abstractmethod
    def inside(self, u: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Shift(Warp):
    """t = s u / (1 + (s - 1) u): more noise for s > 1 (Esser et al. 2024, Eq. 23)."""

    factor: float

    def __post_init__(self) -> None:
        require.positive("shift", self.factor)

    def forward(self, u: Tensor) -> Tensor:
        # Rounding may lift the end above 1, where a flow would have negative signal.
        return (self.factor * u / (1 + (self.factor - 1) * u)).clamp(max=1)

    def inverse(self, u: Tensor) -> Tensor:
        return u / (self.factor - (self.factor - 1) * u)

    def rate(self, u: Tensor) -> Tensor:
        return self.factor / (1 + (self.factor - 1) * u) ** 2

    def inside(self, u: Tensor) -> Tensor:
        return torch.ones_like(u, dtype=torch.bool)


@dataclass(frozen=True)
class Squeeze(Warp):
    """All of unit time into [low, high)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        require.unit_range("the range of unit time", self.low, self.high)
        if self.high - self.low < _NARROWEST:
            raise InvalidParameter(
                f"the range of unit time [{self.low!r}, {self.high!r}) is narrower than float32 can tell."
            )

    def forward(self, u: Tensor) -> Tensor:
        return inside(self.low + (self.high - self.low) * u, self.low, self.high)

    def inverse(self, u: Tensor) -> Tensor:
        return ((u - self.low) / (self.high - self.low)).clamp(0, 1)

    def rate(self, u: Tensor) -> Tensor:
        return torch.full_like(u, self.high - self.low)

    def inside(self, u: Tensor) -> Tensor:
        return (u >= self.low) & (u < self.high)

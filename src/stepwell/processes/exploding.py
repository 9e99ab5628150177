"""Noise that explodes: x = x0 + sigma eps, with sigma geometric in u. What VE and EDM share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.shapes import PerExample


class ExplodingProcess(NoiseProcess):
    """ln sigma runs from `start` over `span`, linearly in u; what a network says and is told is a leaf's."""

    timesteps = None
    shift = 1.0

    start: float
    span: float

    def sigma(self, u: PerExample) -> PerExample:
        """The standard deviation of the noise."""
        return torch.exp(self.start + self.span * u)

    def sigma_ends(self) -> tuple[float, float]:
        """The smallest and the largest sigma."""
        return math.exp(self.start), math.exp(self.start + self.span)

    def scales(self, u: PerExample) -> tuple[PerExample, PerExample]:
        return torch.ones_like(u), self.sigma(u)

    def log_snr(self, u: PerExample) -> PerExample:
        return -2 * (self.start + self.span * u)

    def log_snr_rate(self, u: PerExample) -> PerExample:
        return torch.full_like(u, -2 * self.span)

    def at_log_snr(self, log_snr: Tensor) -> Tensor:
        return (-log_snr / 2 - self.start) / self.span


def logarithms(sigma_min: float, sigma_max: float) -> tuple[float, float]:
    """`start` and `span` of two ends, checked."""
    require.positive("sigma_min", sigma_min)
    if require.positive("sigma_max", sigma_max) <= sigma_min:
        raise InvalidParameter(f"sigma_max {sigma_max:g} must be above sigma_min {sigma_min:g}.")
    return math.log(sigma_min), math.log(sigma_max / sigma_min)

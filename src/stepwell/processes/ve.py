"""The variance-exploding SDE (Song et al. 2021): x = x0 + sigma eps; and what it shares with EDM."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.prediction import prediction_name
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample


class ExplodingProcess(NoiseProcess):
    """x = x0 + sigma eps, with ln sigma = start + span u. Subclasses add the network's target and inputs."""

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
    """`start` and `span` of ln sigma."""
    require.positive("sigma_min", sigma_min)
    if require.positive("sigma_max", sigma_max) <= sigma_min:
        raise InvalidParameter(f"sigma_max {sigma_max:g} must be above sigma_min {sigma_min:g}.")
    return math.log(sigma_min), math.log(sigma_max / sigma_min)


PREDICTIONS = ("eps", "x0")


class VeProcess(ExplodingProcess):
    """x = x0 + sigma eps, with sigma geometric in u from sigma_min to sigma_max.

    The paper has 0.01 to 50 for images in [0, 1]; ours lie in [-1, 1], so the same process has twice as much
    (Karras et al. 2022, Table 1, have 0.02 to 100 too). The network's input is x as it is, its time input
    time_scale x ln(sigma / 2), the logarithm of the paper's sigma. `edm` is this with scaled inputs.
    """

    def __init__(
        self,
        sigma_min: float = 0.02,
        sigma_max: float = 100.0,
        prediction: str = "eps",
        time_scale: float = 1.0,
    ) -> None:
        self.start, self.span = logarithms(sigma_min, sigma_max)
        self.prediction = prediction_name(prediction, PREDICTIONS)
        self.time_scale = require.positive("time_scale", time_scale)

    def __repr__(self) -> str:
        low, high = self.sigma_ends()
        return f"VeProcess(sigma_min={low:g}, sigma_max={high:g}, prediction={self.prediction!r})"

    def time(self, u: PerExample) -> PerExample:
        return self.time_scale * (self.start - math.log(2) + self.span * u)

    def unit_time(self, time: PerExample) -> PerExample:
        return (time / self.time_scale + math.log(2) - self.start) / self.span

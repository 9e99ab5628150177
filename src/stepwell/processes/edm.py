"""EDM: variance-exploding noise with preconditioning (Karras et al. 2022, Table 1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.log_snr import Normal, over_log_snr
from stepwell.core.process import NoiseProcess
from stepwell.core.shapes import PerExample


class EdmProcess(NoiseProcess):
    """x = x0 + sigma eps, with ln sigma linear in u from sigma_min to sigma_max.

    The network's own target is EDM's F, whose plain squared error is EDM's weighted loss: weighting
    `none` and the reference density ln sigma ~ N(mean, std) together are EDM's objective.
    """

    timesteps = None
    shift = 1.0

    def __init__(
        self,
        sigma_min: float = 0.002,
        sigma_max: float = 80.0,
        sigma_data: float = 0.5,
        mean: float = -1.2,
        std: float = 1.2,
    ) -> None:
        require.positive("sigma_min", sigma_min)
        if require.positive("sigma_max", sigma_max) <= sigma_min:
            raise InvalidParameter(f"sigma_max {sigma_max:g} must be above sigma_min {sigma_min:g}.")
        self.sigma_data = require.positive("sigma_data", sigma_data)
        mean, std = require.finite("mean", mean), require.positive("std", std)
        self._start, self._span = math.log(sigma_min), math.log(sigma_max / sigma_min)
        self.reference = over_log_snr(self, Normal(-2 * mean, 2 * std))

    def __repr__(self) -> str:
        low, high = math.exp(self._start), math.exp(self._start + self._span)
        return f"EdmProcess(sigma_min={low:g}, sigma_max={high:g}, sigma_data={self.sigma_data:g})"

    def sigma(self, u: PerExample) -> PerExample:
        """The standard deviation of the noise."""
        return torch.exp(self._start + self._span * u)

    def scales(self, u: PerExample) -> tuple[PerExample, PerExample]:
        return torch.ones_like(u), self.sigma(u)

    def target_mix(self, u: PerExample) -> tuple[PerExample, PerExample]:
        # F = (x0 - c_skip x) / c_out with c_skip = d^2 / (s^2 + d^2), c_out = s d / sqrt(s^2 + d^2).
        sigma, data = self.sigma(u), self.sigma_data
        total = torch.sqrt(sigma**2 + data**2)
        return sigma / (data * total), -data / total

    def input_scale(self, u: PerExample) -> PerExample:
        """c_in."""
        return (self.sigma(u) ** 2 + self.sigma_data**2) ** -0.5

    def time(self, u: PerExample) -> PerExample:
        """c_noise = ln(sigma) / 4."""
        return (self._start + self._span * u) / 4

    def unit_time(self, time: PerExample) -> PerExample:
        return (4 * time - self._start) / self._span

    def log_snr(self, u: PerExample) -> PerExample:
        return -2 * (self._start + self._span * u)

    def log_snr_rate(self, u: PerExample) -> PerExample:
        return torch.full_like(u, -2 * self._span)

    def at_log_snr(self, log_snr: Tensor) -> Tensor:
        return (-log_snr / 2 - self._start) / self._span

    def bound_coefficient(self, u: PerExample, variance: str) -> PerExample:
        raise Unsupported(
            f"the variational bound with variance {variance!r} is a sum over DDPM's discrete chain, "
            "which EDM does not have: use a weighting of the SNR (min-snr, p2, ...) or none."
        )

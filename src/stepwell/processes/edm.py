"""EDM: variance-exploding noise with preconditioning (Karras et al. 2022, Table 1)."""

from __future__ import annotations

import torch

from stepwell.core import require
from stepwell.core.log_snr import Normal, over_log_snr
from stepwell.core.tensors import PerExample
from stepwell.processes.ve import ExplodingProcess, logarithms


class EdmProcess(ExplodingProcess):
    """x = x0 + sigma eps, with ln sigma linear in u from sigma_min to sigma_max.

    The network's own target is EDM's F, whose plain squared error is EDM's weighted loss: weighting
    `none` and the reference density ln sigma ~ N(mean, std) together are EDM's objective.
    """

    prediction = "F"
    has_bound = False

    def __init__(
        self,
        sigma_min: float = 0.002,
        sigma_max: float = 80.0,
        sigma_data: float = 0.5,
        mean: float = -1.2,
        std: float = 1.2,
    ) -> None:
        self.start, self.span = logarithms(sigma_min, sigma_max)
        self.sigma_data = require.positive("sigma_data", sigma_data)
        mean, std = require.finite("mean", mean), require.positive("std", std)
        self.reference = over_log_snr(self, Normal(-2 * mean, 2 * std))

    def __repr__(self) -> str:
        low, high = self.sigma_ends()
        return f"EdmProcess(sigma_min={low:g}, sigma_max={high:g}, sigma_data={self.sigma_data:g})"

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
        return (self.start + self.span * u) / 4

    def unit_time(self, time: PerExample) -> PerExample:
        return (4 * time - self.start) / self.span

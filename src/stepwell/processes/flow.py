"""Rectified flow: a straight line from data to noise (Liu et al. 2023; Esser et al. 2024, SD3)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Density, Shift, Uniform
from stepwell.core.log_snr import Normal, over_log_snr
from stepwell.core.prediction import prediction_name
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample, precise

PREDICTIONS = ("velocity", "eps", "x0")
REFERENCES = ("uniform", "logit-normal")
LARGEST_SHIFT = 1e6
"""Beyond it, nearly all of unit time is one time of the path, and float32 cannot tell the rest apart."""
_LEAST_TIME = 2**-24
_LARGEST_SIGMA = 80.0
"""Where generation begins if the network predicts eps, which says nothing about x0 without any signal."""


class FlowProcess(NoiseProcess):
    """x_t = (1 - t) x0 + t eps, with t = u after the timestep shift s: t = s u / (1 + (s - 1) u).

    With `timesteps`, t takes the T values of diffusers' flow-match schedulers, 1/T to 1 before the shift.
    """

    interpolates = True
    has_bound = False

    def __init__(
        self,
        prediction: str = "velocity",
        shift: float = 1.0,
        timesteps: int | None = None,
        time_scale: float = 1000.0,
        reference: str = "uniform",
    ) -> None:
        self.prediction = prediction_name(prediction, PREDICTIONS)
        self.shift = require.positive("shift", shift, LARGEST_SHIFT)
        self.timesteps = (
            None if timesteps is None else require.count("timesteps", timesteps, most=require.MOST_BINS)
        )
        self.time_scale = require.positive("time_scale", time_scale)
        self._warp = Shift(self.shift)
        self.reference = _reference(require.one_of("reference", reference, REFERENCES))

    def __repr__(self) -> str:
        return (
            f"FlowProcess(prediction={self.prediction!r}, shift={self.shift:g}, timesteps={self.timesteps}, "
            f"time_scale={self.time_scale:g})"
        )

    def sigma(self, u: PerExample) -> PerExample:
        """The flow's own time t in [0, 1]: the share of noise."""
        return self._warp.forward(self._unshifted(u))

    def _unshifted(self, u: PerExample) -> PerExample:
        """Time before the shift; never 0, where the SNR would be infinite."""
        if self.timesteps is None:
            return u.clamp(min=_LEAST_TIME)
        return ((self.index(u) + 1).to(precise(u)) / self.timesteps).to(u)

    def scales(self, u: PerExample) -> tuple[PerExample, PerExample]:
        sigma = self.sigma(u)
        return 1 - sigma, sigma

    def time(self, u: PerExample) -> PerExample:
        return self.time_scale * self.sigma(u)

    def unit_time(self, time: PerExample) -> PerExample:
        return self._at_sigma(time / self.time_scale)

    def log_snr_rate(self, u: PerExample) -> PerExample:
        sigma = self.sigma(u)
        return -2 / (sigma * (1 - sigma)) * self._warp.rate(self._unshifted(u))

    def at_log_snr(self, log_snr: Tensor) -> Tensor:
        return self._at_sigma(torch.sigmoid(-log_snr / 2))

    def solver_times(self, steps: int) -> Tensor:
        """Evenly spaced times, which the shift then moves (Esser et al. 2024)."""
        first = torch.ones(1, dtype=torch.float64)
        if self.prediction == "eps":
            first = self.at_log_snr(-2 * torch.tensor([_LARGEST_SIGMA], dtype=torch.float64).log())
        even = first * torch.arange(steps, 0, -1, dtype=torch.float64) / steps
        if self.timesteps is None:
            return even
        # Timestep k of T has the share k / T of noise; the middle of its bin is never rounded into another.
        return ((even * self.timesteps + 0.5).floor().clamp(min=1) - 0.5) / self.timesteps

    def _at_sigma(self, sigma: Tensor) -> Tensor:
        u = self._warp.inverse(sigma)
        if self.timesteps is None:
            return u
        nearest = (u * self.timesteps).round().clamp(1, self.timesteps)
        return (nearest - 0.5) / self.timesteps


def _reference(name: str) -> Density:
    if name == "uniform":
        return Uniform()
    # SD3's logit-normal(0, 1) over unshifted time is N(0, 2) in log-SNR: log_snr = -2 logit(t).
    return over_log_snr(FlowProcess(), Normal(0.0, 2.0))

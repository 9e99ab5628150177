"""The variance-preserving SDE (Song et al. 2021, Eq. 11): DDPM's linear betas in continuous time."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.prediction import prediction_name
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample

PREDICTIONS = ("eps", "v", "x0")
LARGEST_BETA = 1e3
"""Song et al. have 20. At ten times this limit, float64 has no number for the signal at the noisy end."""


class VpProcess(NoiseProcess):
    """dx = -beta(t) x / 2 dt + sqrt(beta(t)) dw, with beta(t) on a line from beta_min to beta_max.

    t runs from `cut_off` to 1, linearly in u: at t = 0 the score has no bound, so training never goes there.
    A network's score is -eps / noise(u); it predicts eps (or v, or x0), and its time input is time_scale x t.
    """

    def __init__(
        self,
        beta_min: float = 0.1,
        beta_max: float = 20.0,
        cut_off: float = 1e-5,
        prediction: str = "eps",
        time_scale: float = 999.0,
    ) -> None:
        self.beta_min = require.positive("beta_min", beta_min)
        if require.positive("beta_max", beta_max, LARGEST_BETA) < beta_min:
            raise InvalidParameter(f"beta_max {beta_max:g} must not be below beta_min {beta_min:g}.")
        if require.positive("cut_off", cut_off) >= 0.5:
            raise InvalidParameter(f"cut_off {cut_off:g} must lie below 0.5: it is where time starts, of 1.")
        self.beta_max, self.cut_off = float(beta_max), float(cut_off)
        self.prediction = prediction_name(prediction, PREDICTIONS)
        self.time_scale = require.positive("time_scale", time_scale)

    def __repr__(self) -> str:
        return (
            f"VpProcess(beta_min={self.beta_min:g}, beta_max={self.beta_max:g}, cut_off={self.cut_off:g}, "
            f"prediction={self.prediction!r})"
        )

    def diffusion_time(self, u: PerExample) -> PerExample:
        """The SDE's own time t in [cut_off, 1]."""
        return self.cut_off + (1 - self.cut_off) * u

    def beta(self, u: PerExample) -> PerExample:
        """g^2, the rate at which noise comes in."""
        return self.beta_min + (self.beta_max - self.beta_min) * self.diffusion_time(u)

    def _total_beta(self, u: PerExample) -> PerExample:
        """The integral of beta from 0 to t: -ln of the signal's share of the variance."""
        t = self.diffusion_time(u)
        return t * (self.beta_min + (self.beta_max - self.beta_min) * t / 2)

    def scales(self, u: PerExample) -> tuple[PerExample, PerExample]:
        total = self._total_beta(u)
        return torch.exp(-total / 2), torch.sqrt(-torch.expm1(-total))

    def time(self, u: PerExample) -> PerExample:
        return self.time_scale * self.diffusion_time(u)

    def unit_time(self, time: PerExample) -> PerExample:
        return (time / self.time_scale - self.cut_off) / (1 - self.cut_off)

    def log_snr(self, u: PerExample) -> PerExample:
        return -torch.log(torch.expm1(self._total_beta(u)))

    def log_snr_rate(self, u: PerExample) -> PerExample:
        # d/dt of -ln(e^B - 1) is -beta / (1 - e^-B), and 1 - e^-B is the noise's variance.
        return (1 - self.cut_off) * self.beta(u) / torch.expm1(-self._total_beta(u))

    def at_log_snr(self, log_snr: Tensor) -> Tensor:
        total = torch.nn.functional.softplus(-log_snr)
        slope = self.beta_max - self.beta_min
        # The root of slope t^2 / 2 + beta_min t = total, in the form that does not cancel.
        t = 2 * total / (self.beta_min + torch.sqrt(self.beta_min**2 + 2 * slope * total))
        return (t - self.cut_off) / (1 - self.cut_off)

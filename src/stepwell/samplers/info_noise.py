"""InfoNoise: draw where noise destroys information fastest (Raya et al. 2026, arXiv 2602.18647)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core.feedback import Feedback
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import TimestepSampler
from stepwell.samplers.loss_ema import LossEma, log_snr_bins


def info_noise(process: NoiseProcess, bins: int = 100, decay: float = 0.999) -> TimestepSampler:
    """p(sigma) in proportion to mmse(sigma) / sigma^3, the rate of the conditional entropy (I-MMSE).

    mmse = sigma^2 x eps loss, so over ln sigma the density is the eps loss itself: no extra forward
    pass. As published it changes what is drawn and keeps the weighting, so the objective moves.
    """
    borders = log_snr_bins(process, bins)

    def eps_loss(feedback: Feedback) -> Tensor:
        return feedback.plain * process.eps_factor(feedback.u)

    return LossEma("info-noise", borders, _log_sigma_width(process, borders), decay, eps_loss)


def _log_sigma_width(process: NoiseProcess, borders: Tensor) -> Tensor:
    """How much ln sigma each bin [K] spans."""
    if process.timesteps is None:
        inside = borders.clamp(1e-3, 1 - 1e-3)
        return (process.log_snr(inside[:-1]) - process.log_snr(inside[1:])) / 2
    rate = process.log_snr_rate(process.grid()) / process.timesteps
    known = rate[rate.isfinite() & (rate < 0)]
    if len(known) == 0:
        # Too few timesteps to tell: all alike.
        return borders.diff()
    # The step to a zero-SNR timestep spans an infinite ln sigma; it counts as much as the step before.
    finite = torch.where(rate.isfinite(), rate, known[-1])
    spans = torch.cat([finite.new_zeros(1), (-finite / 2).cumsum(0)])
    return spans[(borders * process.timesteps).round().long()].diff()

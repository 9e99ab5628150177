"""EDM2's uncertainty weighting: losses over their expected value at each time, so that all times count alike.

Karras et al. 2024 train v(u) with the network on loss / exp(v) + v. At each time that is least where v is the
logarithm of the mean loss, and then the weighted loss is 1 on average; weights are not scaled to a mean of 1.
v depends on the time alone, and its gradient, 1 - loss / exp(v), on the value of the loss alone. So it learns
by itself from the observed losses: the network has the same gradient, its optimizer no other parameters.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from stepwell.core import require, saved_state
from stepwell.core.feedback import Feedback, usable_losses
from stepwell.core.loss_curve import LossCurve
from stepwell.core.pending import Pending
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import require_kind
from stepwell.core.tensors import Metrics, PerExample, State
from stepwell.core.weighting import LearnedWeighting

LARGEST_LOG_SNR = 12.0
"""Time is told apart between log-SNR -12 and 12; beyond, the loss of the end is taken."""
LARGEST_LOG_LOSS = 20.0
"""v is held between -20 and 20, so that a loss of 0 has a finite weight."""


class Uncertainty(LearnedWeighting):
    """1 / exp(v(u)), with v from -20 to 20; subclasses say how v follows the logarithm of the loss."""

    label: str

    def __repr__(self) -> str:
        return self.label

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        return torch.exp(-self.log_loss(process, u)).to(u.dtype)

    def log_loss(self, process: NoiseProcess, u: PerExample) -> PerExample:
        """v [B]: the logarithm of the loss that is expected at u [B]."""
        return self._v(_log_snr(process, u)).clamp(-LARGEST_LOG_LOSS, LARGEST_LOG_LOSS)

    def learn(self, process: NoiseProcess, feedback: Feedback) -> Metrics:
        """Follow the plain losses; `weighted_loss` comes to 1, `uncertainty_loss` to 1 + the mean ln loss."""
        losses = feedback.plain.detach().float()
        usable = usable_losses(losses, feedback, self)
        v = self.log_loss(process, feedback.u).float()
        ratio = torch.where(usable, losses, 0.0) * torch.exp(-v)
        count = usable.sum().clamp(min=1)
        self._follow(_log_snr(process, feedback.u), losses, usable, ratio)
        return {
            "weighted_loss": ratio.sum() / count,
            "uncertainty_loss": (ratio + torch.where(usable, v, 0.0)).sum() / count,
            "losses_not_weighed": (~usable).sum(),
        }

    @abstractmethod
    def _v(self, log_snr: Tensor) -> Tensor:
        """v [B] at log-SNRs [B]."""

    @abstractmethod
    def _follow(self, log_snr: Tensor, losses: Tensor, usable: Tensor, ratio: Tensor) -> None:
        """Take in the usable losses [B]; ratio [B] is loss / exp(v), and 0 where a loss is not usable."""


def _log_snr(process: NoiseProcess, u: PerExample) -> PerExample:
    """[B], finite."""
    return process.log_snr(u).clamp(-LARGEST_LOG_SNR, LARGEST_LOG_SNR)


class Learned(Uncertainty):
    """v is a linear layer on Fourier features of the noise level, trained by Adam (EDM2).

    Its frequencies are quantiles of EDM2's random ones, and the layer is not normalised. v starts at the mean
    loss of the first update, so that the unit of losses does not matter. The learning rate falls as
    1 / sqrt(updates) after the first thirty.
    """

    def __init__(self, features: int = 128, learning_rate: float = 0.005) -> None:
        half = require.count("features", features, least=2, most=require.MOST_BINS) // 2
        self._rate = require.positive("learning_rate", learning_rate)
        self.label = f"uncertainty(features={2 * half}, learning_rate={learning_rate:g})"
        self._frequencies = _frequencies(half)
        self._level = torch.zeros(())
        """What the layer adds to: ln of the first mean loss."""
        self._layer = torch.zeros(2 * half)
        self._first, self._second = torch.zeros(2 * half), torch.zeros(2 * half)
        """Adam's two moments."""
        self._updates = 0

    def _v(self, log_snr: Tensor) -> Tensor:
        # Not a matrix product, which a host's autocast would round to bfloat16.
        return self._level.to(log_snr) + (self._features(log_snr) * self._layer.to(log_snr)).sum(1)

    def _features(self, log_snr: Tensor) -> Tensor:
        """[B, F], of mean square 1 / 2."""
        angle = log_snr[:, None] * self._frequencies.to(log_snr)
        return torch.cat([torch.cos(angle), torch.sin(angle)], dim=1)

    def _follow(self, log_snr: Tensor, losses: Tensor, usable: Tensor, ratio: Tensor) -> None:
        for name in ("_frequencies", "_level", "_layer", "_first", "_second"):
            setattr(self, name, getattr(self, name).to(losses.device))
        count = usable.sum()
        if self._updates == 0:
            mean = torch.where(usable, losses, 0.0).sum() / count
            self._level = torch.where(count > 0, mean.log().clamp(-LARGEST_LOG_LOSS, LARGEST_LOG_LOSS), 0.0)
        else:
            slope = torch.where(usable, 1 - ratio, 0.0)
            self._adam((self._features(log_snr.float()) * slope[:, None]).sum(0) / count.clamp(min=1))
        self._updates += 1

    def _adam(self, gradient: Tensor) -> None:
        """One step of Adam (Kingma and Ba 2015)."""
        self._first = _BETAS[0] * self._first + (1 - _BETAS[0]) * gradient
        self._second = _BETAS[1] * self._second + (1 - _BETAS[1]) * gradient.square()
        first, second = (
            moment / (1 - beta**self._updates)
            for moment, beta in zip((self._first, self._second), _BETAS, strict=True)
        )
        rate = self._rate / math.sqrt(max(1.0, self._updates / _STEADY))
        self._layer = self._layer - rate * first / (second.sqrt() + 1e-8)

    def state_dict(self) -> State:
        kept = {name: getattr(self, f"_{name}").clone() for name in _STATISTICS}
        return {"kind": self.label, "updates": self._updates, **kept}

    def load_state_dict(self, state: State) -> None:
        require_kind(state, self.label, "weighting")
        shapes = {name: tuple(getattr(self, f"_{name}").shape) for name in _STATISTICS}
        read = {name: saved_state.tensor(state, name, self, shape) for name, shape in shapes.items()}
        self._updates = saved_state.count(state, "updates", self)
        for name, value in read.items():
            setattr(self, f"_{name}", value)


_STATISTICS = ("level", "layer", "first", "second")
_BETAS = (0.9, 0.99)
"""Adam's, as EDM2 trains."""
_STEADY = 30
"""Updates at the full learning rate."""


def _frequencies(count: int) -> Tensor:
    """[count]: per unit of log-SNR. EDM2 has cos(2 pi n ln(sigma) / 4), n normal; ln sigma = -log-SNR / 2."""
    middles = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    normal = math.sqrt(2) * torch.erfinv(middles)
    return (2 * math.pi * normal / 8).float()


class RunningMean(Uncertainty):
    """v is the logarithm of the running mean loss, over bins of log-SNR and on lines between their middles.

    A mean forgets in proportion to what it has seen, and bins with few losses follow their neighbours, as in
    the sampler `auto`. No parameters: exp(-v) = 1 / mean loss is where the learned form arrives.
    """

    def __init__(self, bins: int = 64) -> None:
        self._bins = require.count("bins", bins, least=2, most=require.MOST_BINS)
        self.label = f"uncertainty-mean(bins={bins})"
        self._curve = LossCurve(bins)
        self._pending = Pending("log_snr", "plain")
        self._log = torch.zeros(bins)
        """[K]: the log of the loss in the middle of each bin."""
        self._seen = self._made_at = 0
        """Losses given so far, and when the log was made."""

    def _v(self, log_snr: Tensor) -> Tensor:
        place = (self._place(log_snr) - 0.5).clamp(0, self._bins - 1)
        left = place.long().clamp(max=self._bins - 2)
        log = self._log.to(log_snr)
        return torch.lerp(log[left], log[left + 1], place - left)

    def _place(self, log_snr: Tensor) -> Tensor:
        """[B]: from 0 to the number of bins."""
        return (log_snr + LARGEST_LOG_SNR) / (2 * LARGEST_LOG_SNR) * self._bins

    def _follow(self, log_snr: Tensor, losses: Tensor, usable: Tensor, ratio: Tensor) -> None:
        self._pending.add(log_snr.float(), torch.where(usable, losses, torch.nan))
        self._seen += len(losses)
        # As `auto` does: while there are few losses each batch counts at once, later they wait.
        grown = self._seen >= _OFTEN * self._made_at
        if grown or self._pending.full:
            self._take_in()
        if grown:
            self._made_at = self._seen
            curve, _ = self._curve.fit()
            self._log = (curve + self._curve.level()).float()

    def _take_in(self) -> None:
        log_snr, losses = self._pending.joined()
        self._pending.clear()
        bin_of = self._place(log_snr).long().clamp(0, self._bins - 1)
        self._curve.add(bin_of, losses, losses.isfinite())

    def state_dict(self) -> State:
        counts = {"seen": self._seen, "made_at": self._made_at}
        kept = {**self._curve.state_dict(), **self._pending.state_dict()}
        return {"kind": self.label, "log": self._log.clone(), **counts, **kept}

    def load_state_dict(self, state: State) -> None:
        require_kind(state, self.label, "weighting")
        seen, made_at = (saved_state.count(state, name, self) for name in ("seen", "made_at"))
        log = saved_state.tensor(state, "log", self, tuple(self._log.shape))
        self._seen, self._made_at, self._log = seen, made_at, log
        self._curve.load_state_dict(state)
        self._pending.load_state_dict(state)


_OFTEN = 1.05
"""The log is made anew whenever so many times as many losses were seen as when it was made last."""

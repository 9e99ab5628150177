"""Draw where the loss is: running means of the losses that training computes anyway."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Density, Table, Uniform, edges, not_below
from stepwell.core.feedback import Feedback
from stepwell.core.finite import usable
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, State, TimestepSampler, matching
from stepwell.core.shapes import PerExample
from stepwell.samplers.mix import mix
from stepwell.samplers.one_density import OneDensity, fingerprint
from stepwell.samplers.static import Static


def loss_ema(
    process: NoiseProcess, bins: int = 100, decay: float = 0.999, uniform_share: float = 0.01
) -> TimestepSampler:
    """p in proportion to the mean weighted loss, over bins of equal log-SNR (Kingma and Gao 2023).

    `uniform_share` is ours: a bin whose loss is nearly 0 would get a correction without bound.
    """
    borders = log_snr_bins(process, bins)
    sampler = LossEma("loss-ema", borders, process.reference.masses(borders), decay, _weighted)
    return mix(sampler, Static(Uniform(), "uniform"), uniform_share)


def loss_root(
    process: NoiseProcess, bins: int = 100, decay: float = 0.999, uniform_share: float = 0.1
) -> TimestepSampler:
    """p in proportion to weight x sqrt(mean loss): the norm of the gradient at the network's output.

    Neyman's allocation for nothing, where the network's Jacobian is alike at all times.
    """
    borders = log_snr_bins(process, bins)
    sampler = LossEma("loss-root", borders, process.reference.masses(borders), decay, _output_gradient, 0.5)
    return mix(sampler, Static(process.reference, "reference"), uniform_share)


def _weighted(feedback: Feedback) -> Tensor:
    return feedback.weighted


def _output_gradient(feedback: Feedback) -> Tensor:
    """The squared norm of d(weighted loss) / d(output), up to a constant: weight^2 x loss."""
    return feedback.weighted.square() / feedback.plain.clamp(min=1e-30)


def log_snr_bins(process: NoiseProcess, bins: int) -> Tensor:
    """Borders of unit time [<= bins + 1], even in log-SNR; never inside a discrete timestep."""
    require.count("bins", bins)
    if process.timesteps is None:
        # The ends of a flow have infinite log-SNR: even spacing starts a thousandth inside.
        ends = process.log_snr(torch.tensor([1e-3, 1 - 1e-3], dtype=torch.float64))
        inner = process.at_log_snr(_between(ends[0], ends[1], bins))
    else:
        log_snr = process.log_snr(process.grid())
        finite = log_snr[log_snr.isfinite()]
        if len(finite) < 2:
            return edges(process.timesteps)
        nearest = process.at_log_snr(_between(finite[0], finite[-1], bins)).double()
        # The lower border of the nearest timestep; its middle would round to either side.
        inner = (nearest * process.timesteps).floor() / process.timesteps
    # Neighbouring borders may have met on one timestep: sorted and without repeats, between 0 and 1.
    distinct = sorted({border for border in inner.tolist() if 0 < border < 1})
    return torch.tensor([0.0, *distinct, 1.0], dtype=torch.float64)


def _between(start: Tensor, end: Tensor, bins: int) -> Tensor:
    return start + (end - start) * edges(bins)[1:-1]


class LossEma(OneDensity):
    """Masses = measure [K] x (running mean of what `read` takes from the feedback) ^ power.

    The mean decays per example and is debiased; bins without examples stand at the average.
    """

    learns = True

    def __init__(
        self,
        label: str,
        borders: Tensor,
        measure: Tensor,
        decay: float,
        read: Callable[[Feedback], PerExample],
        power: float = 1.0,
    ) -> None:
        self._decay, self._read, self._power = require.between("decay", decay, 0, 1 - 1e-9), read, power
        # Bins of another process are another sampler, however many they are.
        self.label = f"{label}(bins={len(measure)}, decay={decay:g}, over={fingerprint(borders, measure)})"
        self._measure = measure.float()
        self._borders = not_below(borders, torch.float32)
        self._mean = torch.zeros_like(self._measure)
        self._seen = torch.zeros_like(self._measure)
        self._refresh()

    def _refresh(self) -> None:
        tiny = torch.finfo(torch.float32).tiny
        average = (self._mean.sum() + tiny) / (self._seen.sum() + tiny)
        loss = torch.where(self._seen > 0, self._mean / self._seen.clamp(min=tiny), average)
        # Losses of exactly 0 everywhere would leave no mass at all.
        self._table = Table(self._borders, self._measure * loss.clamp(min=1e-30) ** self._power)

    @property
    def current(self) -> Density:
        return self._table

    def learn(self, feedback: Feedback) -> Metrics:
        losses = self._read(feedback).detach().float()
        finite = usable(losses, feedback, self)
        self._move(losses.device)
        bin_of = self._table.bin_of(feedback.u)
        # A comparison, not index_add: sums in a fixed order give the same bits in every run.
        member = (bin_of[:, None] == torch.arange(len(self._mean), device=losses.device)) & finite[:, None]
        count = member.sum(0)
        total = torch.where(member, losses[:, None], 0.0).sum(0)
        kept = self._decay**count
        self._mean = kept * self._mean + (1 - kept) * total / count.clamp(min=1)
        self._seen = kept * self._seen + (1 - kept)
        self._refresh()
        return {"bins_seen": (self._seen > 0).float().mean(), "losses_left_out": (~finite).sum()}

    def _move(self, device: torch.device) -> None:
        self._borders, self._measure, self._mean, self._seen = (
            tensor.to(device) for tensor in (self._borders, self._measure, self._mean, self._seen)
        )

    def state_dict(self) -> State:
        return {"kind": self.label, "mean": self._mean.clone(), "seen": self._seen.clone()}

    def load_state_dict(self, state: State) -> None:
        matching(state, self.label)
        self._mean, self._seen = (state[key].clone().to(self._mean) for key in ("mean", "seen"))
        self._refresh()

"""Samplers that learn from losses: loss-ema, loss-root, info-noise and loss-second-moment.

They use the losses that training computes anyway, one running statistic per bin of time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Table, edges, not_below
from stepwell.core.feedback import Feedback, valid_losses
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, TimestepSampler
from stepwell.core.tensors import PerExample
from stepwell.samplers.combinators import mix_reference, mix_uniform
from stepwell.samplers.one_density import Learner, fingerprint


def loss_ema(
    process: NoiseProcess, bins: int = 100, decay: float = 0.999, uniform_share: float = 0.01
) -> TimestepSampler:
    """p in proportion to the mean weighted loss, over bins of equal log-SNR (Kingma and Gao 2023).

    `uniform_share` is ours, a share of uniform draws: a bin whose loss is nearly 0 would otherwise get a
    correction without bound.
    """
    borders = log_snr_bins(process, bins)
    measure = process.reference.masses(borders)
    sampler = LossEma("loss-ema", borders, measure, decay, lambda feedback: feedback.weighted)
    return mix_uniform(sampler, uniform_share, "uniform_share")


def loss_root(
    process: NoiseProcess, bins: int = 100, decay: float = 0.999, uniform_share: float = 0.1
) -> TimestepSampler:
    """p in proportion to weight x sqrt(mean loss), the norm of the gradient at the network's output.

    It is Neyman's allocation without a probe, if the network's Jacobian is the same at all times.
    `uniform_share` is the share of draws from the process's reference density.
    """
    borders = log_snr_bins(process, bins)
    measure = process.reference.masses(borders)

    def read(feedback: Feedback) -> PerExample:
        return output_gradient(feedback.plain, feedback.weighted)

    sampler = LossEma("loss-root", borders, measure, decay, read, 0.5)
    return mix_reference(sampler, process.reference, uniform_share, "uniform_share")


def output_gradient(plain: PerExample, weighted: PerExample) -> PerExample:
    """The squared norm [B] of d(weighted loss) / d(output), up to a constant: weight^2 x loss."""
    # Not weighted^2 / plain: the square of a large loss is infinite.
    return weighted * (weighted / plain.clamp(min=1e-30))


def info_noise(
    process: NoiseProcess, bins: int = 100, decay: float = 0.999, uniform_share: float = 0.001
) -> TimestepSampler:
    """p(sigma) in proportion to mmse(sigma) / sigma^3, the rate of the conditional entropy (I-MMSE).

    mmse = sigma^2 x eps loss, so over ln sigma the density is the eps loss itself: no extra forward
    pass. As published it changes the draws and keeps the weighting, so the objective changes.
    `uniform_share` is ours, a share of uniform draws: no time is lost for good after one huge loss.
    """
    borders = log_snr_bins(process, bins)

    def eps_loss(feedback: Feedback) -> Tensor:
        return feedback.plain * process.eps_factor(feedback.u)

    width, share = _log_sigma_width(process, borders), require.between("uniform_share", uniform_share, 0, 1)
    return LossEma("info-noise", borders, width, decay, eps_loss, floor=share)


def loss_second_moment(
    process: NoiseProcess, history: int = 10, uniform_share: float = 0.001, bins: int | None = None
) -> TimestepSampler:
    """p in proportion to sqrt(E[loss^2]) per timestep, once each has `history` losses.

    Nichol and Dhariwal 2021, Eq. 18. `uniform_share` is the share of uniform draws.
    """
    bins = (process.timesteps or 1000) if bins is None else bins
    count = require.count("bins", bins, most=require.MOST_BINS)
    measure = process.reference.masses(edges(count))
    sampler = LossSecondMoment(measure, require.count("history", history, most=require.MOST_STRATA))
    return mix_uniform(sampler, uniform_share, "uniform_share")


class LossEma(Learner):
    """Masses = measure [K] x (running mean of what `read` takes from the feedback) ^ power.

    The mean decays per example and is debiased; bins without examples stand at the average. `floor` is a
    share of uniform draws, not in the label: a state may go on with another.
    """

    statistics = ("mean", "seen")
    constants = ("borders", "measure")

    def __init__(
        self,
        label: str,
        borders: Tensor,
        measure: Tensor,
        decay: float,
        read: Callable[[Feedback], PerExample],
        power: float = 1.0,
        floor: float = 0.0,
    ) -> None:
        self._decay, self._read, self._power = require.between("decay", decay, 0, 1 - 1e-9), read, power
        # The same number of bins over another process is another sampler.
        self.label = f"{label}(bins={len(measure)}, decay={decay:g}, over={fingerprint(borders, measure)})"
        self._measure, self._floor = measure.float(), floor
        self._borders = not_below(borders, torch.float32)
        self._mean = torch.zeros_like(self._measure)
        self._seen = torch.zeros_like(self._measure)

    def _build(self) -> Table:
        tiny = torch.finfo(torch.float32).tiny
        average = (self._mean.sum() + tiny) / (self._seen.sum() + tiny)
        loss = torch.where(self._seen > 0, self._mean / self._seen.clamp(min=tiny), average)
        # Losses of exactly 0 everywhere would leave no mass at all.
        masses = self._measure * loss.clamp(min=1e-30) ** self._power
        if self._floor:
            masses = torch.lerp(masses / masses.sum(), self._borders.diff(), self._floor)
        return Table(self._borders, masses)

    def learn(self, feedback: Feedback) -> Metrics:
        losses = _limited(self._read(feedback), feedback)
        valid = valid_losses(losses, feedback, self)
        self._move(losses.device)
        bin_of = bins_of(feedback.u, self._borders)
        # A comparison, not index_add: sums in a fixed order give the same bits in every run.
        member = (bin_of[:, None] == torch.arange(len(self._mean), device=losses.device)) & valid[:, None]
        count = member.sum(0)
        total = torch.where(member, losses[:, None], 0.0).sum(0)
        kept = self._decay**count
        self._mean = kept * self._mean + (1 - kept) * total / count.clamp(min=1)
        self._seen = kept * self._seen + (1 - kept)
        self._density = None
        return {"bins_seen": (self._seen > 0).float().mean(), "losses_left_out": (~valid).sum()}


_LARGEST = 1e15
"""The sum of many of its squares still fits in float32."""


def _limited(values: Tensor, feedback: Feedback) -> PerExample:
    """What was computed of the losses [B], no larger than `_LARGEST`; NaN where a loss is not finite."""
    # A finite loss of 3e38 counts as the largest: it is no reason to stop, nor to forget all others.
    limited = values.detach().float().clamp(max=_LARGEST)
    return torch.where(feedback.plain.detach().isfinite(), limited, torch.nan)


class LossSecondMoment(Learner):
    """The last `history` weighted losses of each of K equal bins: [K, history]."""

    statistics = ("losses", "count")
    constants = ("borders", "measure")

    def __init__(self, measure: Tensor, history: int) -> None:
        self._measure = measure.float()
        self._length = history
        self._borders = not_below(edges(len(measure)), torch.float32)
        self._losses = torch.zeros(len(measure), history)
        self._count = torch.zeros(len(measure), dtype=torch.long)
        self.label = (
            f"loss-second-moment(bins={len(measure)}, history={history}, over={fingerprint(measure)})"
        )

    def _build(self) -> Table:
        root = self._losses.square().mean(1).sqrt().clamp(min=1e-30)
        full = (self._count >= self._length).all()
        return Table(self._borders, torch.where(full, self._measure * root, torch.ones_like(root)))

    def learn(self, feedback: Feedback) -> Metrics:
        losses = _limited(feedback.weighted, feedback)
        valid = valid_losses(losses, feedback, self)
        device, bins = losses.device, len(self._count)
        self._move(device)
        # Order the batch by bin; losses that do not count go to an extra bin past the last.
        bin_of, order = torch.where(valid, bins_of(feedback.u, self._borders), bins).sort(stable=True)
        first = torch.searchsorted(bin_of, torch.arange(bins + 2, device=device))
        arrived = first.diff()
        order_in_bin = torch.arange(len(bin_of), device=device) - first[bin_of]
        # Of more than `history` losses in one bin only the newest stay: the others have no slot.
        stays = order_in_bin >= arrived[bin_of] - self._length
        known = torch.cat([self._count, self._count.new_zeros(1)])
        slot = (known[bin_of] + order_in_bin) % self._length
        rows = torch.where(stays, bin_of, bins)
        padded = torch.cat([self._losses, self._losses.new_zeros(1, self._length)])
        padded[rows, slot] = losses[order]
        self._losses = padded[:-1].clone()
        self._count = self._count + arrived[:-1]
        self._density = None
        full = (self._count >= self._length).float().mean()
        return {"bins_full": full, "losses_left_out": (~valid).sum()}


def bins_of(u: PerExample, borders: Tensor) -> Tensor:
    """The index [B] of the bin between borders [K + 1] that holds each u [B]."""
    return torch.searchsorted(borders[1:-1].to(u), u.contiguous(), right=True)


def log_snr_bins(process: NoiseProcess, bins: int) -> Tensor:
    """Borders of unit time [<= bins + 1], even in log-SNR; never inside a discrete timestep."""
    require.count("bins", bins, most=require.MOST_BINS)
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


def even_bins(process: NoiseProcess, bins: int) -> Tensor:
    """Borders of unit time [<= bins + 1]: half of them even in reference draws, half in log-SNR."""
    half = require.count("bins", bins, least=2, most=require.MOST_BINS) // 2
    inner = process.reference.quantile(edges(bins - half)[1:-1]).double()
    if process.timesteps is not None:
        inner = (inner * process.timesteps).round() / process.timesteps
    both = {*inner.tolist(), *log_snr_bins(process, half)[1:-1].tolist()}
    return torch.tensor([0.0, *sorted(border for border in both if 0 < border < 1), 1.0], dtype=torch.float64)


def _between(start: Tensor, end: Tensor, bins: int) -> Tensor:
    return start + (end - start) * edges(bins)[1:-1]


def _log_sigma_width(process: NoiseProcess, borders: Tensor) -> Tensor:
    """How much ln sigma each bin [K] spans."""
    if process.timesteps is None:
        inside = borders.clamp(1e-3, 1 - 1e-3)
        return (process.log_snr(inside[:-1]) - process.log_snr(inside[1:])) / 2
    rate = process.log_snr_rate(process.grid()) / process.timesteps
    known = rate[rate.isfinite() & (rate < 0)]
    if len(known) == 0:
        # Too few timesteps: equal widths.
        return borders.diff()
    # The step to a zero-SNR timestep spans an infinite ln sigma; it counts as much as the step before.
    finite = torch.where(rate.isfinite(), rate, known[-1])
    spans = torch.cat([finite.new_zeros(1), (-finite / 2).cumsum(0)])
    return spans[(borders * process.timesteps).round().long()].diff()

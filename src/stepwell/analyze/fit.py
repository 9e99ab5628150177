"""The density that would have been best for a log of timesteps and losses, and what it would have saved.

p in proportion to reference x weight x root of the mean loss, as `loss-root` and `auto` draw: Neyman's
allocation, if the network's Jacobian is alike at all times (core/allocation.py). Losses are averaged in bins
of time, where the density that the log was drawn from cancels: it says how many losses a bin has, not how
large they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.catalogue.spec import Spec
from stepwell.core.allocation import neyman_masses, variance_left
from stepwell.core.density import Table, edges
from stepwell.core.errors import InvalidParameter
from stepwell.core.estimates import NORMAL, Estimate, jackknife, t_quantile
from stepwell.core.loss_curve import LossCurve
from stepwell.core.process import NoiseProcess
from stepwell.pacer.forecast import FEWEST_LOSSES, Forecast
from stepwell.samplers.losses import bins_of, even_bins
from stepwell.weightings import Weighting

BINS = 64
BLOCKS = 10
"""Parts of the log, one after the other: losses near each other in training are alike."""
CLOSE = 0.02
"""A density that leaves so much more variance than the best, or less, is as good as the best."""
_EXPECTED = 5
"""Draws of which none comes in one of 150 cases."""
_POINTS = 16
"""Of a weighting, in each bin."""


@dataclass(frozen=True)
class Fit:
    """A density from a log."""

    borders: Tensor
    """[K + 1]: of the bins, in unit time."""
    shares: Tensor
    """[K]: the objective's share of each."""
    counts: Tensor
    """[K]: pairs in each."""
    curve: Tensor
    """[K]: the mean loss, smoothed, over that of all time."""
    masses: Tensor
    """[K]: how often the best density draws from each."""
    forecast: Forecast
    """What it leaves of the variance, on pairs that it was not made from, and what the best would."""
    excess: float
    """The share of variance that noise in the losses makes it leave above the best, as expected."""
    enough: int | None
    """Pairs drawn like these that bring `excess` to 2 %; None: no number does, they miss parts of time."""

    @property
    def seen(self) -> tuple[float, float]:
        """The first and the last unit time of bins with pairs."""
        drawn = (self.counts > 0).nonzero().flatten()
        return float(self.borders[drawn[0]]), float(self.borders[drawn[-1] + 1])

    def in_parts(self, masses: Tensor, parts: int) -> list[float]:
        """The share of masses [K] of the bins in each of equal parts of time."""
        return Table(self.borders, masses).masses(edges(parts)).tolist()

    @property
    def unseen(self) -> float:
        """The share of the objective in gaps of the log, where the curve goes on as beside them.

        A gap has no pair where the objective's own draws would have had five or more.
        """
        runs = (self.counts.bool().diff(prepend=self.counts[:1].bool()) != 0).cumsum(0)
        empty = torch.where(self.counts == 0, self.shares, 0.0)
        gaps = torch.zeros_like(empty).index_add(0, runs, empty)
        return float(gaps[gaps * self.counts.sum() >= _EXPECTED].sum())

    @property
    def spec(self) -> Spec:
        """The same density in the catalogue's words."""
        masses = tuple(float(f"{mass:.4g}") for mass in self.masses.tolist())
        return Spec("sampler", "table", {"masses": masses, "borders": tuple(self.borders.tolist())})


def fit(
    u: Tensor, losses: Tensor, process: NoiseProcess, weighting: Weighting, weighted: bool = False
) -> Fit:
    """The best density for losses [N] at unit times u [N]; `weighted`: the log has weight x loss."""
    weight = weighting(process, u)
    if weighted:
        # A weight of 0 says nothing about the loss.
        u, losses = u[weight > 0], losses[weight > 0] / weight[weight > 0]
    if len(losses) < FEWEST_LOSSES:
        raise InvalidParameter(
            f"{len(losses)} pairs are too few: {FEWEST_LOSSES} are the least, more are better."
        )
    if not bool((losses > 0).any()):
        raise InvalidParameter("all losses are 0: there is nothing that a density could go by.")
    borders = _rounded(even_bins(process, BINS))
    bin_of = bins_of(u, borders)
    if bool((bin_of == bin_of[0]).all()):
        raise InvalidParameter(
            "all losses are of one timestep or of its neighbours: log them at many, over all of time."
        )
    shares = process.reference.masses(borders).double()
    shares, squares = shares / shares.sum(), _mean_square(weighting, process, borders)
    sums = _sums(bin_of, losses, len(shares))
    left = _left_elsewhere(sums, squares, shares)
    least = _least(sums, squares, shares)
    log, covariance = _curve(sums.sum(0)).fit()
    masses = neyman_masses(squares * log.exp(), shares)
    return Fit(
        borders=borders,
        shares=shares,
        counts=sums[:, 0].sum(0).long(),
        curve=log.exp() / (shares @ log.exp()),
        masses=masses,
        forecast=Forecast(
            len(losses),
            left.value,
            (left.high - left.low) / (2 * NORMAL),
            least.value,
            (least.high - least.low) / (2 * NORMAL),
        ),
        excess=_excess(masses, covariance),
        enough=_enough(sums.sum(0), masses),
    )


def _rounded(borders: Tensor) -> Tensor:
    """Borders that six digits can say; a bin that rounding closed is gone."""
    return torch.tensor(sorted({float(f"{border:.6g}") for border in borders.tolist()}), dtype=torch.float64)


def _mean_square(weighting: Weighting, process: NoiseProcess, borders: Tensor) -> Tensor:
    """[K]: of the weight, over each bin."""
    inside = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) / _POINTS
    points = borders[:-1, None] + inside * borders.diff()[:, None]
    return weighting(process, points.flatten()).double().square().reshape(points.shape).mean(1)


def _sums(bin_of: Tensor, losses: Tensor, bins: int) -> Tensor:
    """[BLOCKS, 3, K]: how many losses, their sum, that of their squares."""
    block = torch.arange(len(losses)) * BLOCKS // len(losses)
    powers = torch.stack([torch.ones_like(losses), losses, losses.square()])
    sums = losses.new_zeros(3, BLOCKS * bins).index_add(1, block * bins + bin_of, powers)
    return sums.reshape(3, BLOCKS, bins).transpose(0, 1)


def _curve(sums: Tensor) -> LossCurve:
    """Means without forgetting: all of the log counts alike."""
    count, total, square = sums
    seen = count.clamp(min=1)
    curve = LossCurve(len(count))
    curve.count, curve.mean, curve.square, curve.inverse_size = count, total / seen, square / seen, 1 / seen
    return curve


def _fitted_masses(sums: Tensor, squares: Tensor, shares: Tensor) -> Tensor:
    log, _ = _curve(sums).fit()
    return neyman_masses(squares * log.exp(), shares)


def _least(sums: Tensor, squares: Tensor, shares: Tensor) -> Estimate:
    """What the best density leaves; the jackknife takes off most of what noise adds to the gain."""

    def statistic(blocks: Tensor) -> Tensor:
        log, _ = _curve(sums[blocks].sum(0)).fit()
        variances = squares * log.exp()
        return variance_left(variances, neyman_masses(variances, shares), shares)[None]

    return jackknife(statistic, BLOCKS)[0].clamped(0.0, 1.0)


def _left_elsewhere(sums: Tensor, squares: Tensor, shares: Tensor) -> Estimate:
    """What densities from nine parts of the log leave in the tenth, over all ten."""
    seen = sums[:, 0].sum(0).clamp(min=1)
    # Each loss counts by the objective's share of its bin over the log's.
    own = shares * squares * sums[:, 1] / seen
    rest = sums.sum(0) - sums
    drawn = torch.stack([_fitted_masses(part, squares, shares) for part in rest])
    changed = torch.where(own > 0, own * shares / drawn, 0.0)
    left = changed.sum() / own.sum()
    # How far each part lies from that ratio, for its standard error.
    apart = (changed - left * own).sum(1) * BLOCKS / own.sum()
    margin = t_quantile(BLOCKS - 1) * float(apart.std()) / math.sqrt(BLOCKS)
    return Estimate(float(left), float(left) - margin, float(left) + margin)


def _excess(masses: Tensor, covariance: Tensor) -> float:
    """The variance under p of the error of ln p, which is half of that of the log curve."""
    return max(0.0, float(masses @ covariance.diag() - masses @ covariance @ masses) / 4)


def _enough(sums: Tensor, masses: Tensor) -> int | None:
    """By bisection over how many times as many pairs there are."""

    def too_few(log: float) -> bool:
        more = _curve(sums)
        more.inverse_size = more.inverse_size * math.exp(-log)
        return _excess(masses, more.fit()[1]) > CLOSE

    low, high = -10.0, 10.0
    if too_few(high):
        return None
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if too_few(middle) else (low, middle)
    return math.ceil(float(sums[0].sum()) * math.exp(high))

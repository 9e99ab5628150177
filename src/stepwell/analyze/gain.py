"""How much gradient noise a better choice of timesteps would remove, and how many images that would save.

What draws leave of the variance, and what that is worth, is in core/allocation.py; draws in proportion to the
deviations s of K strata of equal shares leave (sum s)^2 / (K sum s^2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.analyze.gradient_rounds import GradientRounds
from stepwell.catalogue.find import find
from stepwell.core.allocation import Noise, critical_batch, neyman_masses, variance_left
from stepwell.core.estimates import Estimate, jackknife


@dataclass(frozen=True)
class Gain:
    """Gradient noise over time for the model as it is now; gradients are of the weighted loss."""

    borders: tuple[float, ...]
    """[K + 1]: borders of the strata, in unit time."""
    spread: tuple[float, ...]
    """[K]: the standard deviation of one example's gradient in each stratum, over the mean of all."""
    shares: tuple[float, ...]
    """[K]: each stratum's share of the objective."""
    metric: str
    """adam: gradients were scaled by Adam's preconditioner; or plain."""
    batch: int
    """The batch size that the numbers below are for."""
    floor: float
    """The share of draws from the reference density that `neyman` keeps by default."""
    ratio: Estimate
    """(sum q s)^2 / sum q s^2: the variance within strata of proportional over even draws."""
    ratio_floored: Estimate
    """The same for `neyman` with its floor."""
    between_share: Estimate
    """The share of the variance of even, independent draws that lies between strata."""
    critical_batch: Estimate
    """tr Cov / |mean|^2 of one example's gradient: the batch size where noise and signal are equal."""
    noise_share: Estimate
    """f = (tr Cov / B) / (tr Cov / B + |mean|^2): the noise's share of an update's second moment."""
    images_ratio: Estimate
    """1 - f (1 - r), r the ratio of the variances: images of stratified `neyman` over those of even draws."""


def gain(gradients: GradientRounds, batch: int) -> Gain:
    """The gain for the measured losses at a batch size (over all ranks)."""
    spec = gradients.spec("adam")
    borders = torch.tensor(spec.borders, dtype=torch.float64)
    shares = gradients.setup.process.reference.masses(borders).double()
    halves = gradients.halves(spec)
    floor = next(p.default for p in find("sampler", "neyman").parameters if p.name == "floor")

    def statistic(rounds: Tensor) -> Tensor:
        return _figures(halves[rounds], gradients.variances(halves[rounds]), shares, batch, floor)

    ratio, floored, between, per_noise, images = jackknife(statistic, gradients.effort.rounds)
    spread = gradients.variances(halves).sqrt()
    known = per_noise.clamped(0.0, float("inf"))
    return Gain(
        borders=spec.borders,
        spread=tuple((spread / (shares @ spread)).tolist()),
        shares=tuple(shares.tolist()),
        metric=gradients.metric(spec),
        batch=batch,
        floor=floor,
        ratio=ratio.clamped(0.0, 1.0),
        ratio_floored=floored.clamped(0.0, 1.0),
        between_share=between.clamped(0.0, 1.0),
        critical_batch=critical_batch(per_noise),
        noise_share=known.mapped(lambda signal: 1 / (1 + batch * signal)),
        images_ratio=images.clamped(0.0, 1.0),
    )


def _figures(halves: Tensor, variance: Tensor, shares: Tensor, batch: int, floor: float) -> Tensor:
    """[5]: ratio, ratio with a floor, share between strata, |mean|^2 / tr Cov, ratio of images."""
    ratio, floored = (
        variance_left(variance, neyman_masses(variance, shares, kept), shares) for kept in (0.0, floor)
    )
    # Products of means of different images have no noise in their expectation.
    one, other = halves.mean(0).unbind(1)
    signal = (shares @ one) @ (shares @ other)
    noise = Noise(shares @ variance, shares @ (one * other).sum(-1) - signal, signal)
    images = noise.images(batch, floored, stratified=True)
    return torch.stack([ratio, floored, noise.between / noise.total, noise.per_noise(), images])

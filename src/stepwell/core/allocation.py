"""What a choice of draws leaves of the gradient's variance, stratum by stratum, and what that is worth.

With strata that hold the shares q of the objective, and v the variance of one example's weighted gradient in
each, a batch drawn like the objective has the variance sum(q v) within strata. Drawn with the shares p and
corrected by q / p it has sum(q^2 v / p), which is least for p in proportion to q sqrt(v) (Neyman 1934).

An update's gradient is the mean gradient G plus noise, which falls with the batch B. Steps to a target grow
like 1 + x with x = tr Cov / (B |G|^2) at the best learning rate (McCandlish et al. 2018, Eq. 2.7, if the
Hessian is the identity in the metric of the gradients), and draws that leave less of tr Cov make x smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.core.estimates import Estimate


def variance_left(variances: Tensor, masses: Tensor, shares: Tensor) -> Tensor:
    """What corrected draws with `masses` [K] leave of the variance within strata; those with `shares`, 1.

    `variances` [K] must not be the noisy estimates that `masses` were made from: noise would look like gain.
    """
    # A stratum without noise needs no draws: there 0 / 0 leaves nothing.
    left = torch.where(variances > 0, shares.square() * variances / masses, 0.0)
    return left.sum() / (shares * variances).sum()


def neyman_masses(variances: Tensor, shares: Tensor, floor: float = 0.0) -> Tensor:
    """The masses [K] that leave the least variance, but for a `floor` of draws like the objective's."""
    best = shares * variances.sqrt()
    return (1 - floor) * best / best.sum() + floor * shares


@dataclass(frozen=True)
class Noise:
    """Noise and signal of one example's gradient, drawn like the objective."""

    within: Tensor
    """tr Cov within strata."""
    between: Tensor
    """tr Cov between strata: independent draws have it beside that within them, stratified ones do not."""
    signal: Tensor
    """|G|^2."""

    @property
    def total(self) -> Tensor:
        """tr Cov."""
        return self.within + self.between.clamp(min=0)

    def per_noise(self) -> Tensor:
        """|G|^2 / tr Cov, which unlike its inverse is bounded; below 0 where noise hides the signal."""
        return self.signal / self.total

    def images(self, batch: int, left: Tensor | float, stratified: bool) -> Tensor:
        """Images of draws that leave a share of the variance within strata over those of the objective's own.

        (1 + left x) / (1 + x) with x = critical batch / batch, if nothing lies between strata.
        """
        remains = left * self.within + (0.0 if stratified else self.between.clamp(min=0))
        signal = batch * self.signal.clamp(min=0)
        return (signal + remains) / (signal + self.total)


def critical_batch(per_noise: Estimate) -> Estimate:
    """The batch where noise and signal are equal (McCandlish et al. 2018, Eq. 2.8); without signal, none."""
    known = per_noise.clamped(0.0, float("inf"))
    return known.mapped(lambda signal: 1 / signal if signal else float("inf"))

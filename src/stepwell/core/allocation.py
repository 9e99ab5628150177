"""What a choice of draws leaves of the gradient's variance, stratum by stratum.

With strata that hold the shares q of the objective, and v the variance of one example's weighted gradient in
each, a batch drawn like the objective has the variance sum(q v) within strata. Drawn with the shares p and
corrected by q / p it has sum(q^2 v / p), which is least for p in proportion to q sqrt(v) (Neyman 1934).
"""

from __future__ import annotations

import torch
from torch import Tensor


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

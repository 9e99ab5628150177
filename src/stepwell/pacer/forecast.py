"""What the draws save and what the best draws would, from the losses that a loop observes anyway.

The variance of the gradient at a time is taken to go with weight^2 x loss (`samplers/loss_curve.py`): exact
for the gradient at the network's output, a guess for that of its parameters. `stepwell analyze gain` measures
the latter.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.core.allocation import neyman_masses, variance_left
from stepwell.core.density import not_below
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import State, TimestepSampler
from stepwell.core.tensors import PerExample
from stepwell.samplers.loss_curve import LossCurve, even_bins
from stepwell.samplers.losses import bins_of, output_gradient
from stepwell.samplers.pending import Pending
from stepwell.weightings import Weighting

BINS = 64
FEWEST_LOSSES = 100
NOTHING = 0.02
"""A smaller saving is nothing."""


@dataclass(frozen=True)
class Forecast:
    """The share of the gradient's variance that draws leave: 1 is what draws like the objective's leave."""

    losses: int
    """Observed so far."""
    left: float
    """By the draws of now; NaN if they change the objective, which cannot be compared so."""
    left_error: float
    """Its standard error."""
    least: float
    """By the best draws."""
    least_error: float

    def images(self, batch: int, critical_batch: float) -> float:
        """Images over those of the objective's own draws: (1 + left x) / (1 + x), x = critical / batch.

        McCandlish et al. 2018, Eq. 2.7. `stepwell analyze gain` measures the critical batch.
        """
        ratio = critical_batch / batch
        return (1 + self.left * ratio) / (1 + ratio)

    def __str__(self) -> str:
        if self.losses < FEWEST_LOSSES:
            return f"no forecast yet: {self.losses} losses were observed, {FEWEST_LOSSES} are needed"
        best = (
            f"the best draws would leave {self.least:.2f} ± {self.least_error:.2f} of the gradient's variance"
        )
        if self.least > 1 - NOTHING:
            return f"nothing to win here: {best}"
        if math.isnan(self.left):
            return f"{best}; these draws change the objective"
        return f"these draws leave {self.left:.2f} ± {self.left_error:.2f}, {best}"


class Forecaster:
    """Takes in the losses of this rank and says what draws leave of the variance."""

    def __init__(self, process: NoiseProcess) -> None:
        borders = even_bins(process, BINS)
        self._process = process
        self._borders = not_below(borders, torch.float32)
        shares = process.reference.masses(borders).double()
        self._shares = shares / shares.sum()
        self._curve = LossCurve(len(shares))
        self._pending = Pending("u", "plain")
        self._losses = 0

    def observe(self, u: PerExample, plain: PerExample, weighting: Weighting) -> None:
        """The plain losses [B] of examples at unit times u [B]."""
        # A copy: compiled losses may live in memory that the next step writes to.
        self._pending.add(u.detach().float(), plain.detach().to(torch.float32, copy=True))
        self._losses += len(u)
        if self._pending.full:
            self._curve = self._with_pending(weighting)
            self._pending.clear()

    def _with_pending(self, weighting: Weighting) -> LossCurve:
        """The curve of all losses; a copy, so that asking for a forecast changes nothing."""
        curve = copy(self._curve)
        if self._pending:
            u, plain = self._pending.joined()
            values = output_gradient(plain, plain * weighting(self._process, u))
            curve.add(bins_of(u, self._borders.to(u.device)), values, values.isfinite())
        return curve

    def forecast(self, sampler: TimestepSampler, weighting: Weighting) -> Forecast:
        """What is known so far."""
        log, covariance = (part.cpu().double() for part in self._with_pending(weighting).fit())
        variances, shares = (log - log.max()).exp(), self._shares
        of_each = shares * variances / (shares @ variances)
        best = neyman_masses(variances, shares)
        masses = sampler.masses(self._borders.double()).cpu().double()
        masses = masses / masses.sum()
        left = variance_left(variances, masses, shares)
        # How each changes with the log curve, for its standard error.
        left_slope = of_each * shares / masses.clamp(min=1e-12) - left * of_each
        least = variance_left(variances, best, shares)
        least_slope = least * (best - of_each)
        # Draws without a correction keep the objective only if they are its own.
        keeps = sampler.reference is not None or bool((masses - shares).abs().sum() < 1e-3)
        return Forecast(
            self._losses,
            float(left) if keeps else math.nan,
            _error(left_slope, covariance),
            float(least),
            _error(least_slope, covariance),
        )

    def state_dict(self) -> State:
        """What was seen, and the losses that are not taken in yet."""
        return {"losses": self._losses, **self._pending.state_dict(), **self._curve.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self._losses = int(state["losses"])
        self._pending.load_state_dict(state)
        self._curve.load_state_dict(state)


def _error(slope: Tensor, covariance: Tensor) -> float:
    return float((slope @ covariance @ slope).clamp(min=0).sqrt())

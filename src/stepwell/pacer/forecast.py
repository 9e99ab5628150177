"""What the draws save and what the best draws would, from the losses that a loop observes anyway.

The variance of the gradient at a time is taken to go with weight^2 x loss (`core/loss_curve.py`): exact
for the gradient at the network's output, a guess for that of its parameters. Where gradients are measured too
(`Pacer.measure`, `gradient_noise.py`), they correct that guess, and tell from which batch size on nothing is
won.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.core import saved_state
from stepwell.core.allocation import neyman_masses, variance_left
from stepwell.core.density import not_below
from stepwell.core.estimates import NORMAL, Estimate
from stepwell.core.loss_curve import LossCurve
from stepwell.core.pending import Pending
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import State, TimestepSampler
from stepwell.core.tensors import PerExample
from stepwell.pacer.gradient_noise import Draws, GradientNoise
from stepwell.samplers.combinators import Stratified
from stepwell.samplers.losses import bins_of, even_bins, output_gradient
from stepwell.weightings import Weighting

BINS = 64
FEWEST_LOSSES = 100
NOTHING = 0.02
"""A smaller saving is nothing."""
HALF_BELIEVED = 2
"""As many measurements of the gradients correct the loss curve by half: a single one is off by a factor."""


@dataclass(frozen=True)
class Forecast:
    """What draws leave of the gradient's variance (1: draws like the objective's), and what that is worth."""

    losses: int
    """Observed so far."""
    left: float
    """By the draws of now; NaN if they change the objective, which cannot be compared so."""
    left_error: float
    """Its standard error."""
    least: float
    """By the best draws."""
    least_error: float
    batch: int = 0
    """Examples of an update, over all ranks and micro-batches."""
    critical_batch: Estimate | None = None
    """The batch at which noise and signal are equal; None until `Pacer.measure` was called three times."""
    images: Estimate | None = None
    """Images for the same loss over those of the objective's own draws, at this batch; None if unknown."""
    best_images: Estimate | None = None
    """The same for the best draws."""

    @property
    def nothing_to_win(self) -> bool:
        """Whether no choice of timesteps would save as much as 2 % of the images."""
        best = self.least if self.best_images is None else self.best_images.value
        return best > 1 - NOTHING

    @property
    def left_range(self) -> Estimate:
        """`left` with its 95 % interval."""
        return Estimate(self.left, self.left, self.left).widened(NORMAL * self.left_error)

    @property
    def least_range(self) -> Estimate:
        """`least` with its 95 % interval."""
        at = Estimate(self.least, self.least, self.least)
        return at.widened(NORMAL * self.least_error).clamped(0.0, 1.0)

    def scalars(self) -> dict[str, float]:
        """Its numbers by name, as runs record them; what is unknown or infinite is left out."""
        if self.losses < FEWEST_LOSSES:
            return {}
        values = {"least": self.least, "least_error": self.least_error}
        if not math.isnan(self.left):
            values |= {"left": self.left, "left_error": self.left_error}
        for name in _MEASURED:
            estimate = getattr(self, name)
            if estimate is not None:
                values |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        return {name: value for name, value in values.items() if math.isfinite(value)}

    @classmethod
    def recorded(cls, scalars: Mapping[str, float], losses: int, batch: int) -> Forecast:
        """The forecast whose `scalars` a run recorded, after so many losses and at its batch."""
        measured = {}
        for name in _MEASURED:
            if f"{name}_low" in scalars:
                # Only a critical batch can be infinite: where no signal was seen in the noise.
                value, high = (scalars.get(key, math.inf) for key in (name, f"{name}_high"))
                measured[name] = Estimate(value, scalars[f"{name}_low"], high)
        left, error = scalars.get("left", math.nan), scalars.get("left_error", math.nan)
        return cls(losses, left, error, scalars["least"], scalars["least_error"], batch, **measured)

    def short(self) -> str:
        """A few words for a progress line; empty before enough losses were observed."""
        if self.losses < FEWEST_LOSSES:
            return ""
        if self.nothing_to_win:
            return "nothing to win by other timesteps"
        if self.images is not None and self.best_images is not None:
            return f"forecast {self.images.value:.2f}x the images, best {self.best_images.value:.2f}x"
        if self.best_images is not None:
            return f"forecast at best {self.best_images.value:.2f}x the images"
        own = "at best" if math.isnan(self.left) else f"{self.left:.2f}x, best"
        return f"gradient variance {own} {self.least:.2f}x"

    def __str__(self) -> str:
        if self.losses < FEWEST_LOSSES:
            return f"no forecast yet: {self.losses} of the {FEWEST_LOSSES} losses that it needs were observed"
        least = self.least_range.text()
        lead = "these timesteps change the objective; the best that keep it" if math.isnan(self.left) else ""
        lead = "nothing to win here: even the best timesteps" if self.nothing_to_win else lead
        if self.best_images is None or self.critical_batch is None:
            return self._from_losses(lead)
        best, critical = self.best_images.text(), f"the critical batch is {self.critical_batch.text('.0f')}"
        need = f"of the images that the process's own timesteps need at batch {self.batch}"
        if lead or self.images is None:
            variance = f"they leave {least} of the gradient's variance"
            return f"{lead} would need {best} {need}; {variance}, and {critical}"
        return (
            f"expect {self.images.text()} {need}, {best} at best: these timesteps leave "
            f"{self.left_range.text()} of the gradient's variance, the best {least}, and {critical}"
        )

    def _from_losses(self, lead: str) -> str:
        """In words, where nothing tells the critical batch."""
        least = self.least_range.text()
        if lead:
            told = f"{lead} would leave {least} of the gradient's variance"
        elif abs(self.left - 1) + NORMAL * self.left_error < NOTHING / 4:
            told = f"these timesteps save nothing; the best would leave {least} of the gradient's variance"
        else:
            left = self.left_range.text()
            told = f"these timesteps leave {left} of the gradient's variance, the best would leave {least}"
        return told if self.nothing_to_win else f"{told}{_WORTH}"


_MEASURED = ("critical_batch", "images", "best_images")
_WORTH = "; small batches need about that share of the images, large ones save less"
"""What a share of the variance is worth while nothing tells the critical batch."""


class Forecaster:
    """Takes in the losses of this rank and says what draws leave of the variance."""

    def __init__(self, process: NoiseProcess, sampler: TimestepSampler) -> None:
        borders = even_bins(process, BINS)
        self._process = process
        self._borders = not_below(borders, torch.float32)
        shares = process.reference.masses(borders).double()
        self._shares = shares / shares.sum()
        self._curve = LossCurve(len(shares))
        self._pending = Pending("u", "plain")
        self._sampler = sampler
        self._same_curve = sampler.loss_curve(self._borders) is not None
        """Whether the sampler keeps the same curve (`auto`), of all ranks: then it need not be kept twice."""
        self._losses = 0
        self.noise = GradientNoise()
        self.batch = 0
        """Examples of an update."""

    def observe(self, u: PerExample, plain: PerExample, weighting: Weighting) -> None:
        """The plain losses [B] of examples at unit times u [B]."""
        self._losses += len(u)
        if self._same_curve:
            return
        # A copy: compiled losses may live in memory that the next step writes to.
        self._pending.add(u.detach().float(), plain.detach().to(torch.float32, copy=True))
        if self._pending.full:
            self._curve = self._with_pending(weighting)
            self._pending.clear()

    def _with_pending(self, weighting: Weighting) -> LossCurve:
        """The curve of all losses; a copy, so that asking for a forecast changes nothing."""
        if self._same_curve and (kept := self._sampler.loss_curve(self._borders)) is not None:
            return kept
        curve = copy(self._curve)
        if self._pending:
            u, plain = self._pending.joined()
            values = output_gradient(plain, plain * weighting(self._process, u))
            # A negative loss has no root to draw by.
            usable = values.isfinite() & (plain >= 0)
            curve.add(bins_of(u, self._borders.to(u.device)), values, usable)
        return curve

    def forecast(self, weighting: Weighting) -> Forecast:
        """What is known so far."""
        sampler = self._sampler
        log, covariance = (part.cpu().double() for part in self._with_pending(weighting).fit())
        log = log + self._correction(log)
        variances, shares = (log - log.max()).exp(), self._shares
        of_each = shares * variances / (shares @ variances)
        best = neyman_masses(variances, shares)
        masses = sampler.masses(self._borders.double()).cpu().double()
        # Differences of a CDF near 1 round to 0 at the ends of a reference, as if nothing were drawn there.
        masses = (masses / masses.sum()).clamp(min=1e-9)
        left = variance_left(variances, masses, shares)
        # How each changes with the log curve, for its standard error.
        left_slope = of_each * shares / masses - left * of_each
        least = variance_left(variances, best, shares)
        least_slope = least * (best - of_each)
        # Draws without a correction keep the objective only if they are its own.
        keeps = sampler.reference is not None or bool((masses - shares).abs().sum() < 1e-3)
        even = isinstance(sampler, Stratified)
        own = Draws(float(left), _error(left_slope, covariance), even)
        ideal = Draws(float(least), _error(least_slope, covariance), True)
        critical, images, best_images = self.noise.estimates(self.batch, [own, ideal]) or (None, None, None)
        return Forecast(
            self._losses,
            own.left if keeps else math.nan,
            own.error,
            ideal.left,
            ideal.error,
            self.batch,
            critical,
            images if keeps else None,
            # The best are never worse than the process's own.
            best_images and best_images.clamped(0.0, 1.0),
        )

    def _correction(self, log: Tensor) -> Tensor:
        """[K]: how far measured gradients lie above the loss curve, in logarithms, as far as it is known.

        Losses stand for the gradient at the network's output; its Jacobian may differ over time.
        """
        count = self.noise.measured
        if not count:
            return torch.zeros_like(log)
        share, strata = self._shares, self.noise.variances().clamp(min=1e-30)
        middles = share.cumsum(0) - share / 2
        stratum = (middles * len(strata)).long().clamp(max=len(strata) - 1)
        curve = torch.zeros_like(strata).index_add(0, stratum, share * log.exp())
        curve = curve / torch.zeros_like(strata).index_add(0, stratum, share).clamp(min=1e-30)
        above = strata.log() - curve.clamp(min=1e-30).log()
        return ((above - above.mean()) * (count / (count + HALF_BELIEVED)))[stratum]

    def state_dict(self) -> State:
        """What was seen, and the losses that are not taken in yet."""
        noise = {"noise": self.noise.state_dict(), "batch": self.batch}
        return {"losses": self._losses, **self._pending.state_dict(), **self._curve.state_dict(), **noise}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self._losses = saved_state.count(state, "losses", "the forecast")
        self._pending.load_state_dict(state)
        self._curve.load_state_dict(state)
        if "noise" in state:  # not in checkpoints of before it was measured
            self.noise.load_state_dict(saved_state.part(state, "noise", "the forecast"))
            self.batch = saved_state.count(state, "batch", "the forecast")


def _error(slope: Tensor, covariance: Tensor) -> float:
    return float((slope @ covariance @ slope).clamp(min=0).sqrt())

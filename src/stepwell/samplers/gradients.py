"""Samplers that learn from gradients: neyman, gradient-variance and alignment.

Time is cut into strata that the objective draws equally often. Every few steps one stratum is measured:
`GradientSpec` (core/probe.py) asks for it, `Gradients` (probes/gradients.py) measures it, and the samplers
here keep running means and draw stratum k with probability

    neyman             p_k ~ sqrt(Var g_k)            the least variance of the gradient (Neyman 1934)
    gradient-variance  p_k ~ Var g_k                  a control (Kim et al. 2025, Table 4)
    alignment          p_k ~ max(0, <g_k, G>)         the fastest decrease of the target, to first order

where g_k is the gradient of the trained loss of one example in stratum k, and G the target's gradient, both
in the metric of Adam's preconditioner. Inside a stratum draws follow the objective's own density.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from stepwell.core import require, saved_state
from stepwell.core.density import Density, Table, edges, tilted
from stepwell.core.errors import Unsupported
from stepwell.core.feedback import Feedback, GradientSignal
from stepwell.core.probe import GradientSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, State, TimestepSampler, require_kind
from stepwell.samplers.combinators import mix_reference
from stepwell.samplers.one_density import Learner, fingerprint


def neyman(
    process: NoiseProcess,
    strata: int = 20,
    every_steps: int | None = None,
    images: int | None = None,
    decay: float = 0.7,
    floor: float = 0.2,
    metric: str = "adam",
) -> TimestepSampler:
    """p in proportion to the standard deviation of the weighted gradient (Neyman 1934).

    `floor` is the share of draws from the process's reference density.
    """
    spec = replace(strata_spec(process, strata, every_steps, images, None, metric), difference_only=True)
    floor = require.between("floor", floor, 0, 1)
    sampler = GradientDeviation("neyman", process.reference, spec, decay, floor)
    return mix_reference(sampler, process.reference, floor, "floor")


def gradient_variance(
    process: NoiseProcess,
    strata: int = 20,
    every_steps: int | None = None,
    images: int | None = None,
    decay: float = 0.7,
    floor: float = 0.0,
    metric: str = "plain",
) -> TimestepSampler:
    """p in proportion to the variance of the gradient, without correction (Kim et al. 2025, Table 4)."""
    spec = replace(strata_spec(process, strata, every_steps, images, None, metric), difference_only=True)
    sampler = GradientVariance("gradient-variance", process.reference, spec, decay)
    return mix_reference(sampler, process.reference, floor, "floor")


def alignment(
    process: NoiseProcess,
    strata: int = 20,
    every_steps: int | None = None,
    images: int | None = None,
    decay: float = 0.7,
    floor: float = 0.2,
    target: str = "vlb",
    metric: str = "adam",
) -> TimestepSampler:
    """p in proportion to how much an update on each stratum lowers the target, to first order."""
    spec = strata_spec(process, strata, every_steps, images, target, metric, usual_steps=24)
    sampler = Alignment("alignment", process.reference, spec, decay)
    return mix_reference(sampler, process.reference, floor, "floor")


def strata_spec(
    process: NoiseProcess,
    strata: int,
    every_steps: int | None,
    images: int | None,
    target: str | None,
    metric: str,
    usual_steps: int = 16,
) -> GradientSpec:
    """Strata that the reference density draws equally often: of equal width if it is uniform.

    None: `usual_steps` and 16 images, or what suits a small batch.
    """
    require.count("strata", strata, least=2, most=require.MOST_STRATA)
    require.one_of("metric", metric, ("adam", "plain"))
    inner = process.reference.quantile(edges(strata)[1:-1])
    borders = (0.0, *inner.tolist(), 1.0)
    given = {"every_steps": every_steps, "images": images}
    return GradientSpec(
        usual_steps if every_steps is None else every_steps,
        target,
        borders,
        16 if images is None else images,
        preconditioned=metric == "adam",
        follows_batch=tuple(name for name, value in given.items() if value is None),
    )


class Strata(Learner):
    """The reference density until every stratum was measured, then masses in proportion to `_learned`."""

    learns_from_losses = False
    statistics: tuple[str, ...] = ("seen", "masses")
    constants = ("edges",)

    def __init__(self, label: str, reference: Density, spec: GradientSpec, decay: float) -> None:
        self._spec, self._reference = spec, reference
        self._decay = require.between("decay", decay, 0, 1 - 1e-9)
        borders = torch.tensor(spec.borders, dtype=torch.float64)
        self.label = (
            f"{label}(strata={spec.strata}, decay={decay:g}, target={spec.target or 'trained'}, "
            f"metric={'adam' if spec.preconditioned else 'plain'}, over={fingerprint(borders)})"
        )
        self._seen = torch.zeros(spec.strata)
        """1 - decay^n after n measurements of a stratum: divides out the bias of a mean that starts at 0."""
        self._masses = torch.ones(spec.strata)
        self._edges = edges(spec.strata).float()

    @property
    def probe(self) -> GradientSpec:
        return self._spec

    def _build(self) -> Density:
        return tilted(self._reference, Table(self._edges, self._masses))

    def learn(self, feedback: Feedback) -> Metrics:
        signal = feedback.signal
        if signal is None:
            return {}
        if not isinstance(signal, GradientSignal):
            raise Unsupported(f"{self} learns from gradients, not from {type(signal).__name__}.")
        halves = signal.halves.detach().float()
        # A measurement that is not finite, or too large for its variance, counts as none; checking it on the
        # device costs no wait.
        finite = (halves.square().sum() * signal.images).isfinite()
        self._move(halves.device)
        here = torch.arange(len(self._seen), device=halves.device) == signal.stratum
        kept = torch.where(here & finite, self._decay, 1.0)
        self._seen = kept * self._seen + (1 - kept)
        self._update(torch.where(finite, halves, 0.0), signal.images, kept)
        masses = self._learned()
        complete = (self._seen > 0).all() & masses.isfinite().all() & (masses.sum() > 0)
        self._masses = torch.where(complete, masses / masses.mean().clamp(min=1e-30), 1.0)
        self._density = None
        return {"strata_seen": (self._seen > 0).float().mean(), **self._metrics()}

    @abstractmethod
    def _update(self, halves: Tensor, images: int, kept: Tensor) -> None:
        """Take in sketches [2, d] of one stratum; `kept` [K] is the decay there and 1 for all others."""

    @abstractmethod
    def _learned(self) -> Tensor:
        """The masses [K] that were learned, of any scale."""

    @abstractmethod
    def _metrics(self) -> Metrics: ...

    def _mean(self, running: Tensor) -> Tensor:
        """A running mean [K, ...] without the bias of its start."""
        seen = self._seen.clamp(min=1e-30)
        return running / seen.view(-1, *[1] * (running.dim() - 1))


class GradientVariance(Strata):
    """Masses = the variance of one example's gradient, summed over parameters.

    Keeps means of variances: that of logarithms lies below, the further the fewer directions the noise has.
    """

    statistics = (*Strata.statistics, "variance")

    def __init__(self, label: str, reference: Density, spec: GradientSpec, decay: float) -> None:
        super().__init__(label, reference, spec, decay)
        self._variance = torch.zeros(spec.strata)

    def _update(self, halves: Tensor, images: int, kept: Tensor) -> None:
        self._variance = kept * self._variance + (1 - kept) * _variance(halves, images)

    def _learned(self) -> Tensor:
        variance = self._mean(self._variance)
        return variance / variance.max().clamp(min=torch.finfo(variance.dtype).tiny)

    def _metrics(self) -> Metrics:
        return {}

    def load_state_dict(self, state: State) -> None:
        if "log_variance" in require_kind(state, self.label):
            # Version 0.1 kept means of logarithms: what they say of the variance is where this one starts.
            shape = self._shape("variance")
            seen, logs = (saved_state.tensor(state, name, self, shape) for name in ("seen", "log_variance"))
            state = {**state, "variance": (logs / seen.clamp(min=1e-30)).exp() * seen}
        super().load_state_dict(state)


class GradientDeviation(Strata):
    """Masses = the standard deviation of one example's gradient; `floor` is the reference's share of draws.

    `variance_ratio` is what the draws of the last rounds left of the variance of draws from the reference. A
    new measurement knows nothing of the draws that it is divided by, so noise does not look like a gain: in
    estimates that the draws were made from, it would. It is 1 until every stratum was measured under
    learned draws.
    """

    statistics = (*Strata.statistics, "log_variance", "told")

    def __init__(
        self, label: str, reference: Density, spec: GradientSpec, decay: float, floor: float
    ) -> None:
        super().__init__(label, reference, spec, decay)
        self._floor = floor
        self._log_variance = torch.zeros(spec.strata)
        self._told = torch.zeros(3, spec.strata)
        """[3, K]: running means of 1, the variance, and variance / (density of draws / reference)."""

    def _update(self, halves: Tensor, images: int, kept: Tensor) -> None:
        variance = _variance(halves, images)
        density = ((1 - self._floor) * self._masses + self._floor).clamp(min=1e-12)
        told = torch.stack([torch.ones_like(density), variance.expand_as(density), variance / density])
        # A ratio is told of them: sums over strata must stay finite.
        new = told.clamp(max=1e30)
        # Until every stratum was seen, all masses are 1: draws of the reference say nothing of learned ones.
        counts = (kept < 1) & (self._masses != 1).any()
        self._told = torch.where(counts, kept * self._told + (1 - kept) * new, self._told)
        # Means of logarithms: a single measurement is off by a factor, an early one by a large factor. On the
        # measurements of real runs their draws leave a little less than those of means (benchmarks/LOG.md).
        self._log_variance = kept * self._log_variance + (1 - kept) * variance.clamp(min=1e-30).log()

    def _learned(self) -> Tensor:
        logs = self._mean(self._log_variance)
        # Around their mean, so that no scale overflows.
        return (0.5 * (logs - logs.mean())).exp()

    def _metrics(self) -> Metrics:
        seen = self._told[0]
        # Strata hold equal shares of the reference.
        variance, left = (self._told[1:] / seen.clamp(min=1e-30)).sum(1)
        known = (seen > 0).all() & (variance > 0)
        return {"variance_ratio": torch.where(known, left / variance, 1.0)}

    def load_state_dict(self, state: State) -> None:
        # Version 0.1 did not keep `told`: the ratio is told again after a round.
        super().load_state_dict({"told": torch.zeros_like(self._told), **require_kind(state, self.label)})


def _variance(halves: Tensor, images: int) -> Tensor:
    """The trace of the covariance of one example's gradient, from the means [2, d] of two halves."""
    # Half the squared distance of two independent means of n is the variance of one of them.
    return (halves[0] - halves[1]).square().sum() * (images / 2)


class Alignment(Strata):
    """Masses = the gain <g_k, mean_j g'_j>, where it is positive.

    Keeps running means of sketches, not of their products: noise averages out before it is multiplied.
    """

    statistics: tuple[str, ...] = (*Strata.statistics, "bank")

    def __init__(self, label: str, reference: Density, spec: GradientSpec, decay: float) -> None:
        super().__init__(label, reference, spec, decay)
        self._bank = torch.zeros(spec.strata, 2, 0)
        """[K, 2, d]: sketches of the trained loss's and the target's gradients."""

    def _update(self, halves: Tensor, images: int, kept: Tensor) -> None:
        width = halves.shape[-1]
        if self._bank.shape[-1] != width:
            self._bank = self._bank.new_zeros(len(kept), 2, width)
        kept = kept[:, None, None]
        self._bank = kept * self._bank + (1 - kept) * halves

    def _shape(self, statistic: str) -> tuple[int | None, ...]:
        # Sketches are as wide as the probe makes them.
        return (self._spec.strata, 2, None) if statistic == "bank" else super()._shape(statistic)

    def interdependence(self) -> Tensor:
        """[K, K]: how fast training on stratum i lowers the target in stratum j (Kim et al., Fig. 4)."""
        trained, target = self._mean(self._bank).unbind(1)
        across = trained @ target.T
        # With one objective both halves estimate the same gradient: using both ways halves the noise.
        return across if self._spec.target else (across + across.T) / 2

    def gains(self) -> Tensor:
        """[K]: how fast a draw from each stratum lowers the target."""
        return self.interdependence().mean(1)

    def _learned(self) -> Tensor:
        return self.gains().clamp(min=0)

    def support(self, u: Tensor) -> Tensor:
        # A stratum whose gain is not positive is not drawn: only a floor guarantees all of time.
        return torch.zeros_like(u, dtype=torch.bool)

    def _metrics(self) -> Metrics:
        return {"negative_gains": (self.gains() < 0).float().mean()}

    def diagnostics(self) -> Mapping[str, Tensor]:
        return {"interdependence": self.interdependence()}

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

from stepwell.core import require
from stepwell.core.density import Density, Table, Uniform, edges
from stepwell.core.errors import Unsupported
from stepwell.core.feedback import Feedback, GradientSignal
from stepwell.core.probe import GradientSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, TimestepSampler
from stepwell.samplers.combinators import mix_reference
from stepwell.samplers.one_density import Learner, fingerprint


def neyman(
    process: NoiseProcess,
    strata: int = 20,
    every_steps: int = 16,
    images: int = 16,
    decay: float = 0.7,
    floor: float = 0.2,
    metric: str = "adam",
) -> TimestepSampler:
    """p in proportion to the standard deviation of the weighted gradient (Neyman 1934).

    `floor` is the share of draws from the process's reference density.
    """
    spec = replace(strata_spec(process, strata, every_steps, images, None, metric), difference_only=True)
    sampler = GradientSpread("neyman", process.reference, spec, decay, power=0.5)
    return mix_reference(sampler, process.reference, floor, "floor")


def gradient_variance(
    process: NoiseProcess,
    strata: int = 20,
    every_steps: int = 16,
    images: int = 16,
    decay: float = 0.7,
    floor: float = 0.0,
    metric: str = "plain",
) -> TimestepSampler:
    """p in proportion to the variance of the gradient, without correction (Kim et al. 2025, Table 4)."""
    spec = replace(strata_spec(process, strata, every_steps, images, None, metric), difference_only=True)
    sampler = GradientSpread("gradient-variance", process.reference, spec, decay, power=1.0)
    return mix_reference(sampler, process.reference, floor, "floor")


def alignment(
    process: NoiseProcess,
    strata: int = 20,
    every_steps: int = 24,
    images: int = 16,
    decay: float = 0.7,
    floor: float = 0.2,
    target: str = "vlb",
    metric: str = "adam",
) -> TimestepSampler:
    """p in proportion to how much an update on each stratum lowers the target, to first order."""
    spec = strata_spec(process, strata, every_steps, images, target, metric)
    sampler = Alignment("alignment", process.reference, spec, decay)
    return mix_reference(sampler, process.reference, floor, "floor")


def strata_spec(
    process: NoiseProcess, strata: int, every_steps: int, images: int, target: str | None, metric: str
) -> GradientSpec:
    """Strata that the reference density draws equally often: of equal width if it is uniform."""
    require.count("strata", strata, least=2)
    require.one_of("metric", metric, ("adam", "plain"))
    inner = process.reference.quantile(edges(strata)[1:-1])
    borders = (0.0, *inner.tolist(), 1.0)
    return GradientSpec(every_steps, target, borders, images, preconditioned=metric == "adam")


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
        table = Table(self._edges, self._masses)
        return table if isinstance(self._reference, Uniform) else Tilted(self._reference, table)

    def learn(self, feedback: Feedback) -> Metrics:
        signal = feedback.signal
        if signal is None:
            return {}
        if not isinstance(signal, GradientSignal):
            raise Unsupported(f"{self!r} learns from gradients, not from {type(signal).__name__}.")
        halves = signal.halves.detach().float()
        # A measurement that is not finite counts as none; checking it on the device costs no wait.
        finite = halves.isfinite().all()
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


class GradientSpread(Strata):
    """Masses = (variance of one example's gradient, summed over parameters) ^ power."""

    statistics = (*Strata.statistics, "log_variance")

    def __init__(
        self, label: str, reference: Density, spec: GradientSpec, decay: float, power: float
    ) -> None:
        super().__init__(label, reference, spec, decay)
        self._power = power
        self._log_variance = torch.zeros(spec.strata)

    def _update(self, halves: Tensor, images: int, kept: Tensor) -> None:
        one, other = halves
        # Half the squared distance of two independent means of n is the variance of one of them.
        variance = (one - other).square().sum() * (images / 2)
        # Means of logarithms: a single measurement is off by a factor, an early one by a large factor.
        self._log_variance = kept * self._log_variance + (1 - kept) * variance.clamp(min=1e-30).log()

    def _learned(self) -> Tensor:
        return (self._power * self._centred()).exp()

    def _centred(self) -> Tensor:
        """[K]: log variances around their mean, so that no scale overflows."""
        logs = self._mean(self._log_variance)
        return logs - logs.mean()

    def _metrics(self) -> Metrics:
        spread = (0.5 * self._centred()).exp()
        return {"variance_ratio": spread.mean().square() / spread.square().mean()}


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


class Tilted(Density):
    """A reference density times a table over its own quantiles."""

    def __init__(self, reference: Density, table: Table) -> None:
        self.reference, self.table = reference, table

    def quantile(self, v: Tensor) -> Tensor:
        return self.reference.quantile(self.table.quantile(v).clamp(2**-24, 1 - 2**-24))

    def pdf(self, u: Tensor) -> Tensor:
        return self.reference.pdf(u) * self.table.pdf(self.reference.cdf(u).to(u).clamp(0, 1))

    def cdf(self, u: Tensor) -> Tensor:
        return self.table.cdf(self.reference.cdf(u).to(u).clamp(0, 1))

"""Samplers that learn one mass per stratum of time from gradients."""

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
from stepwell.core.sampler import Metrics, State, TimestepSampler, require_kind
from stepwell.samplers.combinators import mix_reference
from stepwell.samplers.static import OneDensity, fingerprint


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


def strata_spec(
    process: NoiseProcess, strata: int, every_steps: int, images: int, target: str | None, metric: str
) -> GradientSpec:
    """Strata that the objective holds equally often: of equal width for a uniform reference."""
    require.count("strata", strata, least=2)
    require.one_of("metric", metric, ("adam", "plain"))
    inner = process.reference.quantile(edges(strata)[1:-1])
    borders = (0.0, *inner.tolist(), 1.0)
    return GradientSpec(every_steps, target, borders, images, preconditioned=metric == "adam")


class Strata(OneDensity):
    """Uniform over the reference until every stratum was measured, then as `masses` says."""

    learns = True
    learns_from_losses = False

    def __init__(self, label: str, reference: Density, spec: GradientSpec, decay: float) -> None:
        self._spec, self._reference = spec, reference
        self._decay = require.between("decay", decay, 0, 1 - 1e-9)
        borders = torch.tensor(spec.borders, dtype=torch.float64)
        self.label = (
            f"{label}(strata={spec.strata}, decay={decay:g}, target={spec.target or 'trained'}, "
            f"metric={'adam' if spec.preconditioned else 'plain'}, over={fingerprint(borders)})"
        )
        self._seen = torch.zeros(spec.strata)
        self._masses = torch.ones(spec.strata)
        self._edges = edges(spec.strata).float()

    @property
    def probe(self) -> GradientSpec:
        return self._spec

    @property
    def current(self) -> Density:
        # Made when a draw asks: most updates change nothing.
        if self._density is None:
            table = Table(self._edges, self._masses)
            flat = isinstance(self._reference, Uniform)
            self._density = table if flat else Tilted(self._reference, table)
        return self._density

    _density: Density | None = None

    def learn(self, feedback: Feedback) -> Metrics:
        signal = feedback.signal
        if signal is None:
            return {}
        if not isinstance(signal, GradientSignal):
            raise Unsupported(f"{self!r} learns from gradients, not from {type(signal).__name__}.")
        halves = signal.halves.detach().float()
        # What is not finite counts as not measured, without looking at it.
        finite = halves.isfinite().all()
        self._move(halves.device)
        here = torch.arange(len(self._seen), device=halves.device) == signal.stratum
        kept = torch.where(here & finite, self._decay, 1.0)
        self._take(replace(signal, halves=torch.where(finite, halves, 0.0)), kept)
        self._seen = kept * self._seen + (1 - kept)
        masses = self._learned()
        useful = (self._seen > 0).all() & masses.isfinite().all() & (masses.sum() > 0)
        self._masses = torch.where(useful, masses / masses.mean().clamp(min=1e-30), 1.0)
        self._density = None
        return {"strata_seen": (self._seen > 0).float().mean(), **self._metrics()}

    def _mean(self, running: Tensor) -> Tensor:
        """A running mean [K, ...] without the bias of its start."""
        seen = self._seen.clamp(min=1e-30)
        return running / seen.view(-1, *[1] * (running.dim() - 1))

    @abstractmethod
    def _take(self, signal: GradientSignal, kept: Tensor) -> None:
        """Take in one stratum: `kept` [K] is the share of the old that stays, 1 for all but one."""

    @abstractmethod
    def _learned(self) -> Tensor:
        """The masses [K] that were learned, of any scale."""

    def _metrics(self) -> Metrics:
        return {}

    def _move(self, device: torch.device) -> None:
        self._seen, self._masses = self._seen.to(device), self._masses.to(device)
        self._edges = self._edges.to(device)

    def state_dict(self) -> State:
        return {"kind": self.label, "seen": self._seen.clone(), "masses": self._masses.clone()}

    def load_state_dict(self, state: State) -> None:
        require_kind(state, self.label)
        self._seen, self._masses = (state[key].clone().to(self._seen) for key in ("seen", "masses"))
        self._density = None


def neyman(
    process: NoiseProcess,
    strata: int = 20,
    every_steps: int = 16,
    images: int = 16,
    decay: float = 0.7,
    floor: float = 0.2,
    metric: str = "adam",
) -> TimestepSampler:
    """p in proportion to the standard deviation of the weighted gradient (Neyman 1934): least noise."""
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
    """p in proportion to the variance of the gradient, without correction (Kim et al. 2025, Tab. 4)."""
    spec = replace(strata_spec(process, strata, every_steps, images, None, metric), difference_only=True)
    sampler = GradientSpread("gradient-variance", process.reference, spec, decay, power=1.0)
    return mix_reference(sampler, process.reference, floor, "floor")


class GradientSpread(Strata):
    """Masses = (variance of one example's gradient, summed over parameters) ^ power."""

    def __init__(
        self, label: str, reference: Density, spec: GradientSpec, decay: float, power: float
    ) -> None:
        super().__init__(label, reference, spec, decay)
        self._power = power
        self._log_variance = torch.zeros(spec.strata)

    def _take(self, signal: GradientSignal, kept: Tensor) -> None:
        one, other = signal.halves
        # Half the squared distance of two independent means of n is the variance of one of them.
        variance = (one - other).square().sum() * (signal.images / 2)
        # Means of logarithms: a variance measured once is off by a factor, and early ones by a large one.
        self._log_variance = kept * self._log_variance + (1 - kept) * variance.clamp(min=1e-30).log()

    def _learned(self) -> Tensor:
        return (self._power * self._centred()).exp()

    def _centred(self) -> Tensor:
        """[K]: log variances around their mean, so that no scale overflows."""
        logs = self._mean(self._log_variance)
        return logs - logs.mean()

    def _metrics(self) -> Metrics:
        spread = (0.5 * self._centred()).exp()
        ratio = spread.mean().square() / spread.square().mean()
        return {"variance_ratio": ratio}

    def _move(self, device: torch.device) -> None:
        super()._move(device)
        self._log_variance = self._log_variance.to(device)

    def state_dict(self) -> State:
        return {**super().state_dict(), "log_variance": self._log_variance.clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._log_variance = state["log_variance"].clone().to(self._log_variance)


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
    """p in proportion to the first-order decrease of the target from an update on each stratum."""
    spec = strata_spec(process, strata, every_steps, images, target, metric)
    sampler = Alignment("alignment", process.reference, spec, decay)
    return mix_reference(sampler, process.reference, floor, "floor")


class Alignment(Strata):
    """Masses = the gain <g_i, P sum_j g'_j>, where it is positive.

    Running means of sketches, not of products: noise then averages out before it is multiplied.
    """

    def __init__(self, label: str, reference: Density, spec: GradientSpec, decay: float) -> None:
        super().__init__(label, reference, spec, decay)
        self._bank = torch.zeros(spec.strata, 2, 0)

    def _take(self, signal: GradientSignal, kept: Tensor) -> None:
        width = signal.halves.shape[-1]
        if self._bank.shape[-1] != width:
            self._bank = self._bank.new_zeros(len(kept), 2, width)
        kept = kept[:, None, None]
        self._bank = kept * self._bank + (1 - kept) * signal.halves

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
        # Any stratum may turn out to gain nothing, and is then left out: only a floor reaches all.
        return torch.zeros_like(u, dtype=torch.bool)

    def _metrics(self) -> Metrics:
        gains = self.gains()
        return {"negative_gains": (gains < 0).float().mean()}

    def diagnostics(self) -> Mapping[str, Tensor]:
        return {"interdependence": self.interdependence()}

    def _move(self, device: torch.device) -> None:
        super()._move(device)
        self._bank = self._bank.to(device)

    def state_dict(self) -> State:
        return {**super().state_dict(), "bank": self._bank.clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._bank = state["bank"].clone().to(self._seen)

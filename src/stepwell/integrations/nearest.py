"""Of the densities that a host has by name, the one nearest to a given one.

Nearest is the least Kullback-Leibler divergence from the density that is wanted: of all settings, the one
under which its draws are most likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.catalogue import build
from stepwell.catalogue.spec import Spec
from stepwell.core.errors import Unsupported
from stepwell.integrations.host_densities import Family, Host, Setting
from stepwell.integrations.host_formats import require_models
from stepwell.integrations.timestep_lists import TimestepDensity

_LEAST = 1e-30
"""Stands for the mass of a bin where a density has none: the divergence is large there, and not infinite."""
_WORTH = 1e-4
"""Nats that a range of time must save before it is set."""
_JOINED = 16
"""Fine bins in one of those that fits are made over."""
_TIMESTEPS = 1000
"""What hosts with settings in DDPM's timesteps count."""


@dataclass(frozen=True)
class Nearest:
    """A host's own density, as near as it comes."""

    written: str
    """The host's setting."""
    spec: Spec
    """The same density by our name, without a range."""
    divergence: float
    """In nats; 0 is the same density."""
    moved: float
    """The share of draws that lie elsewhere (total variation)."""


def nearest(host: Host, density: TimestepDensity) -> Nearest:
    """The host's setting nearest to a density."""
    require_models(host.name, host.models, density.process)
    if host.models == "ddpm" and density.process.timesteps != _TIMESTEPS:
        raise Unsupported(f"{host.name} counts 1,000 timesteps, and {density.process} does not.")
    borders, masses = density.table.borders, density.table.shares
    if not host.before_shift:
        borders, masses = density.over_sigma()
    borders, masses = _coarser(borders, masses)
    best = _best(host, borders, masses, "")
    if host.range_written is not None:
        low, high = _limits(borders, masses)
        squeezed = ((borders - low) / (high - low)).clamp(0, 1)
        inside = _best(host, squeezed, masses, host.range_written(low, high))
        best = inside if inside.divergence < best.divergence - _WORTH else best
    return best


def _coarser(borders: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
    """About 4,000 bins: a fit tries sixty densities."""
    joined = next(count for count in range(_JOINED, 0, -1) if len(masses) % count == 0)
    return borders[::joined], masses.reshape(-1, joined).sum(1)


def _best(host: Host, borders: Tensor, masses: Tensor, suffix: str) -> Nearest:
    fitted = (_fitted(setting, borders, masses, suffix) for setting in host.settings)
    return min(fitted, key=lambda own: own.divergence)


def _fitted(setting: Setting, borders: Tensor, masses: Tensor, suffix: str) -> Nearest:
    fit = _FITS[setting.family]
    found = dict(setting.fixed) or {key: _short(value) for key, value in fit(borders, masses).items()}
    spec = _spec(setting.family, found)
    own = build.sampler(spec, "flow").masses(borders)
    own = own / own.sum()
    return Nearest(
        setting.written(found) + suffix, spec, divergence(masses, own), float((masses - own).abs().sum() / 2)
    )


def divergence(masses: Tensor, other: Tensor) -> float:
    """sum p ln(p / q) over bins [K], in nats."""
    ratio = masses.clamp(min=_LEAST).log() - other.clamp(min=_LEAST).log()
    return max(0.0, float((masses * ratio).sum()))


def _limits(borders: Tensor, masses: Tensor) -> tuple[float, float]:
    """The range of time that a density draws from, in thousandths."""
    drawn = (masses > 0).nonzero().flatten()
    first, last = float(borders[drawn[0]]), float(borders[drawn[-1] + 1])
    # Rounding may have put a trace of mass into the bin outside.
    return math.floor(1000 * first + 0.02) / 1000, math.ceil(1000 * last - 0.02) / 1000


def _short(value: float) -> float:
    # Plus 0: no setting is -0.
    return round(float(f"{value:.5g}"), 6) + 0.0


def _spec(family: Family, found: Mapping[str, float]) -> Spec:
    if family not in ("range", "biased-range"):
        return Spec("sampler", family, dict(found))
    sides = (0.0, found["first"] / _TIMESTEPS, found["end"] / _TIMESTEPS, 1.0)
    heights = (1.0, found["multiplier"], 1.0) if family == "biased-range" else (0.0, 1.0, 0.0)
    parts = [
        (high, height * (high - low))
        for low, high, height in zip(sides[:-1], sides[1:], heights, strict=True)
        if high > low
    ]
    borders = (0.0, *(high for high, _ in parts))
    return Spec("sampler", "table", {"masses": tuple(mass for _, mass in parts), "borders": borders})


def _middles(borders: Tensor) -> Tensor:
    return (borders[1:] + borders[:-1]) / 2


def _logit_normal(borders: Tensor, masses: Tensor) -> dict[str, float]:
    """Mean and deviation of the logit: the likeliest, as of any normal."""
    drawn = masses > 0
    logit, masses = torch.logit(_middles(borders)[drawn]), masses[drawn]
    mean = masses @ logit
    return {"mean": float(mean), "std": float((masses @ (logit - mean).square()).sqrt())}


def _beta(borders: Tensor, masses: Tensor) -> dict[str, float]:
    """Where the means of ln u and ln(1 - u) are those of the Beta, by Newton's method (Minka 2000)."""
    drawn = masses > 0
    middles, masses = _middles(borders)[drawn], masses[drawn]
    wanted = torch.stack([masses @ middles.log(), masses @ torch.log1p(-middles)])
    mean, spread = masses @ middles, masses @ (middles - masses @ middles).square()
    strength = (mean * (1 - mean) / spread - 1).clamp(min=0.1)
    shape = torch.stack([mean, 1 - mean]) * strength
    for _ in range(50):
        both = shape.sum()
        error = torch.digamma(shape) - torch.digamma(both) - wanted
        slope = torch.diag(torch.polygamma(1, shape)) - torch.polygamma(1, both)
        step = torch.linalg.solve(slope, error)
        # Half the way to 0 at most: shapes stay positive.
        shape = torch.maximum(shape - step, shape / 2)
    return {"alpha": float(shape[0]), "beta": float(shape[1])}


def _uniform(borders: Tensor, masses: Tensor) -> dict[str, float]:
    """The shift of uniform draws, by golden section over its logarithm."""

    def far(log: float) -> float:
        return _divergence_of("uniform", {"shift": math.exp(log)}, borders, masses)

    return {"shift": math.exp(_least(far, -4.0, 4.0))}


def _mode(borders: Tensor, masses: Tensor) -> dict[str, float]:
    """SD3's scale, by golden section over the scales that make a density."""

    def far(scale: float) -> float:
        return _divergence_of("mode", {"scale": scale}, borders, masses)

    return {"scale": _least(far, -1.0, 1.75)}


def _divergence_of(family: Family, found: Mapping[str, float], borders: Tensor, masses: Tensor) -> float:
    own = build.sampler(_spec(family, found), "flow").masses(borders)
    return divergence(masses, own / own.sum())


_GOLDEN = (math.sqrt(5) - 1) / 2


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one minimum has it (Kiefer 1953)."""
    for _ in range(30):
        one, two = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, two) if function(one) < function(two) else (one, high)
    return (low + high) / 2


def _range(borders: Tensor, masses: Tensor) -> dict[str, float]:
    """The timesteps that are drawn at all: any narrower range would never draw some of them."""
    drawn = (_per_timestep(masses) > 0).nonzero().flatten()
    return {"first": int(drawn[0]), "end": int(drawn[-1]) + 1}


def _biased_range(borders: Tensor, masses: Tensor) -> dict[str, float]:
    """The range of timesteps and the factor on their probability, of all ranges."""
    below = torch.cat([masses.new_zeros(1), _per_timestep(masses).cumsum(0)])
    inside = below[None, :] - below[:, None]
    places = torch.arange(_TIMESTEPS + 1, dtype=torch.float64)
    width = places[None, :] - places[:, None]
    outside, rest = 1 - inside, _TIMESTEPS - width
    likelihood = torch.special.xlogy(inside, inside / width) + torch.special.xlogy(outside, outside / rest)
    possible = (width > 0) & (rest > 0) & (inside > 0) & (outside > 0)
    first, end = divmod(int(torch.where(possible, likelihood, -torch.inf).argmax()), _TIMESTEPS + 1)
    factor = (inside / width) / (outside / rest)
    return {"first": first, "end": end, "multiplier": float(factor[first, end])}


def _per_timestep(masses: Tensor) -> Tensor:
    return masses.reshape(_TIMESTEPS, -1).sum(1)


def _nothing(borders: Tensor, masses: Tensor) -> dict[str, float]:
    return {}


_FITS: Mapping[Family, Callable[[Tensor, Tensor], dict[str, float]]] = {
    "uniform": _uniform,
    "logit-normal": _logit_normal,
    "beta": _beta,
    "mode": _mode,
    "cosmap": _nothing,
    "range": _range,
    "biased-range": _biased_range,
}

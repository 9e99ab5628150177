"""Samplers that never learn: one published density each, in closed form or as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Density, Moved, Squeeze, Table, Uniform, edges, inside, rounded
from stepwell.core.density import table as checked_table
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.log_snr import Laplace, Normal, over_log_snr
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import TimestepSampler
from stepwell.samplers.one_density import Static, fingerprint

FINE_BINS = 4096
"""Bins of a tabulated density over continuous time."""


def uniform(process: NoiseProcess) -> TimestepSampler:
    """Every timestep equally often (Ho et al. 2020)."""
    return Static(Uniform(), "uniform")


def reference(process: NoiseProcess) -> TimestepSampler:
    """The density that the process's own objective uses: uniform, EDM's log-normal, SD3's logit-normal."""
    return Static(process.reference, "reference")


def logit_normal(
    process: NoiseProcess, mean: float = 0.0, std: float = 1.0, as_published: bool = False
) -> TimestepSampler:
    """SD3's logit-normal (Esser et al. 2024); Kim et al. 2025 call it log-normal.

    `as_published` maps to timesteps by round(u (T - 1)), as Kim et al.'s code does.
    """
    density: Density = LogitNormal(Normal(mean, std))
    if as_published:
        density = rounded(density, _timesteps(process, "as_published"))
    return Static(density, f"logit-normal(mean={mean:g}, std={std:g}, as_published={as_published})")


def log_normal_sigma(process: NoiseProcess, mean: float = -1.2, std: float = 1.2) -> TimestepSampler:
    """EDM's ln sigma ~ N(mean, std) with sigma = noise / signal (Karras et al. 2022)."""
    mean, std = require.finite("mean", mean), require.positive("std", std)
    density = over_log_snr(process, Normal(-2 * mean, 2 * std))
    return Static(density, f"log-normal-sigma(mean={mean:g}, std={std:g})")


def laplace(process: NoiseProcess, mean: float = 0.0, scale: float = 0.5) -> TimestepSampler:
    """log-SNR ~ Laplace(mean, scale) (Hang et al. 2025, Improved Noise Schedule)."""
    density = over_log_snr(process, Laplace(mean, scale))
    return Static(density, f"laplace(mean={mean:g}, scale={scale:g})")


def mode(process: NoiseProcess, scale: float = 1.29) -> TimestepSampler:
    """SD3's mode sampling with heavy tails: u = 1 - w - s (cos^2(pi w / 2) - 1 + w) (Esser et al. 2024)."""
    require.between("scale", scale, -1, 2 / (math.pi - 2))
    w = 1 - edges(FINE_BINS)
    borders = 1 - w - scale * (torch.cos(math.pi / 2 * w) ** 2 - 1 + w)
    # The formula is an inverse CDF: equal masses between its values tabulate it.
    borders[0], borders[-1] = 0.0, 1.0
    return Static(Table(borders, torch.ones(FINE_BINS, dtype=torch.float64)), f"mode(scale={scale:g})")


def cosmap(process: NoiseProcess) -> TimestepSampler:
    """SD3's CosMap density, 2 / (pi (1 - 2 u + 2 u^2)) (Esser et al. 2024)."""
    return Static(CosMap(), "cosmap")


def beta(process: NoiseProcess, alpha: float = 0.8, beta: float = 1.0) -> TimestepSampler:
    """u ~ Beta(alpha, beta); alpha 0.8, beta 1 is B-TTDM (Zheng et al. 2024)."""
    return Static(_beta(process, alpha, beta), f"beta(alpha={alpha:g}, beta={beta:g})")


def _beta(process: NoiseProcess, alpha: float, beta: float) -> Table:
    require.positive("alpha", alpha)
    require.positive("beta", beta)
    borders = edges(process.timesteps or FINE_BINS)
    return Table(borders, beta_cdf(borders, alpha, beta).diff())


def pi0(
    process: NoiseProcess, alpha: float = 1.5, beta: float = 1.0, least: float = 0.001
) -> TimestepSampler:
    """u = least + (1 - least) Beta(alpha, beta): robot policies (Black et al. 2024, pi0; also GR00T)."""
    density = Moved(_beta(process, alpha, beta), Squeeze(require.between("least", least, 0, 0.5), 1.0))
    return Static(density, f"pi0(alpha={alpha:g}, beta={beta:g}, least={least:g})")


def style_friendly(process: NoiseProcess, mean: float = -6.0, std: float = 2.0) -> TimestepSampler:
    """log-SNR ~ N(mean, std): mostly noise, where style is decided (Choi et al. 2024, arXiv 2411.14793)."""
    return Static(over_log_snr(process, Normal(mean, std)), f"style-friendly(mean={mean:g}, std={std:g})")


def jit(process: NoiseProcess, mean: float = 0.8, std: float = 0.8) -> TimestepSampler:
    """The logit-normal of JiT (Li and He 2025, arXiv 2511.13720), whose own time runs the other way."""
    return Static(LogitNormal(Normal(mean, std)), f"jit(mean={mean:g}, std={std:g})")


def u_shaped(process: NoiseProcess, scale: float = 4.0) -> TimestepSampler:
    """p(u) in proportion to e^(scale u) + e^(scale (1 - u)): both ends (Lee et al. 2024, reflow)."""
    # Beyond 80 float32 has no sinh, and everything would lie at the two ends.
    require.between("scale", require.positive("scale", scale), 0, 80)
    return Static(UShaped(scale), f"u-shaped(scale={scale:g})")


def table(
    process: NoiseProcess, masses: Sequence[float], borders: Sequence[float] | None = None
) -> TimestepSampler:
    """Any piecewise-constant density: masses of equal bins, or of the bins between `borders`."""
    density = checked_table(
        _numbers("masses", masses), None if borders is None else _numbers("borders", borders)
    )
    return Static(density, f"table({fingerprint(density.borders, density.shares)})")


def _numbers(name: str, values: Sequence[float]) -> Tensor:
    try:
        return torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidParameter(f"{name} must be a list of numbers, not {values!r}.") from None


def _timesteps(process: NoiseProcess, option: str) -> int:
    if process.timesteps is None:
        raise Unsupported(f"{option} counts discrete timesteps, and {process} is continuous.")
    return process.timesteps


@dataclass(frozen=True)
class LogitNormal(Density):
    """u = sigmoid(z), z normal."""

    normal: Normal

    def quantile(self, v: Tensor) -> Tensor:
        # float32 rounds sigmoid to 1 beyond 17: kept below 1, and above 0 where the density ends.
        return torch.sigmoid(self.normal.icdf(v)).clamp(2**-40, 1 - 2**-24)

    def pdf(self, u: Tensor) -> Tensor:
        height = self.normal.pdf(torch.logit(u)) / (u * (1 - u))
        return torch.where((u > 0) & (u < 1), height, 0.0)

    def cdf(self, u: Tensor) -> Tensor:
        return self.normal.cdf(torch.logit(u))

    def masses(self, borders: Tensor) -> Tensor:
        return self.normal.masses(torch.logit(borders))


@dataclass(frozen=True)
class CosMap(Density):
    """p(u) = 2 / (pi (1 - 2 u + 2 u^2))."""

    def quantile(self, v: Tensor) -> Tensor:
        return (0.5 + 0.5 * torch.tan(math.pi / 2 * (v - 0.5))).clamp(0, 1 - 2**-24)

    def pdf(self, u: Tensor) -> Tensor:
        return 2 / (math.pi * (1 - 2 * u + 2 * u**2))

    def cdf(self, u: Tensor) -> Tensor:
        return 0.5 + 2 / math.pi * torch.atan(2 * u - 1)


@dataclass(frozen=True)
class UShaped(Density):
    """p(u) = a cosh(a (u - 1/2)) / (2 sinh(a / 2)), which is e^(a u) + e^(a (1 - u)) with mass 1."""

    scale: float

    def quantile(self, v: Tensor) -> Tensor:
        u = 0.5 + torch.asinh((2 * v - 1) * math.sinh(self.scale / 2)) / self.scale
        return inside(u, 0.0, 1.0)

    def pdf(self, u: Tensor) -> Tensor:
        return self.scale * torch.cosh(self.scale * (u - 0.5)) / (2 * math.sinh(self.scale / 2))

    def cdf(self, u: Tensor) -> Tensor:
        return 0.5 + torch.sinh(self.scale * (u - 0.5)) / (2 * math.sinh(self.scale / 2))


_TERMS = 300
_TINY = 1e-300


def beta_cdf(x: Tensor, a: float, b: float) -> Tensor:
    """The regularised incomplete beta function I_x(a, b), for x in [0, 1] and float64.

    Lentz's continued fraction (DLMF 8.17.22); its mirror image is used where it converges faster.
    """
    x = x.to(torch.float64)
    mirrored = x > (a + 1) / (a + b + 2)
    low = _fraction(torch.where(mirrored, 0.5, x), a, b)
    high = 1 - _fraction(torch.where(mirrored, 1 - x, 0.5), b, a)
    return torch.where(mirrored, high, low).clamp(0, 1)


def log_beta(a: float, b: float) -> float:
    """ln B(a, b)."""
    terms = torch.lgamma(torch.tensor([a, b, a + b], dtype=torch.float64))
    return float(terms[0] + terms[1] - terms[2])


def _fraction(x: Tensor, a: float, b: float) -> Tensor:
    front = torch.exp(a * torch.log(x) + b * torch.log1p(-x) - log_beta(a, b)) / a
    c = torch.ones_like(x)
    d = 1 / (1 - (a + b) / (a + 1) * x)
    value = d.clone()
    for m in range(1, _TERMS):
        even = m * (b - m) / ((a + 2 * m - 1) * (a + 2 * m)) * x
        odd = -(a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1)) * x
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value = value * c * d
    return front * value


def _away_from_zero(x: Tensor) -> Tensor:
    return torch.where(x.abs() < _TINY, _TINY, x)

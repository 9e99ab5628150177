"""Distributions over log-SNR, as densities over a process's unit time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Density, Table, edges, inside
from stepwell.core.errors import Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import precise

_LAST = 1 - 2**-24
"""The largest float32 below 1: a flow's log-SNR ends there, at -33, and not at minus infinity."""
_LEAST_MASS = 1e-6
"""The least mass inside a process's range: with less, float32 draws would be a few values."""


class Symmetric(ABC):
    """A distribution on the real line, symmetric about its mean."""

    mean: float

    @abstractmethod
    def cdf(self, x: Tensor) -> Tensor: ...
    @abstractmethod
    def icdf(self, v: Tensor) -> Tensor: ...
    @abstractmethod
    def pdf(self, x: Tensor) -> Tensor: ...

    def masses(self, rising: Tensor) -> Tensor:
        """The mass between neighbours of rising points, without cancellation in either tail."""
        lower, upper = self.cdf(rising), self.cdf(2 * self.mean - rising)
        return torch.where(rising[1:] < self.mean, lower.diff(), -upper.diff())


@dataclass(frozen=True)
class Normal(Symmetric):
    """The normal distribution."""

    mean: float
    std: float

    def __post_init__(self) -> None:
        require.finite("mean", self.mean)
        require.positive("std", self.std)

    def cdf(self, x: Tensor) -> Tensor:
        # torch's ndtr and its Normal are (1 + erf) / 2, which loses the lower tail.
        return torch.erfc((self.mean - x) / (self.std * math.sqrt(2))) / 2

    def icdf(self, v: Tensor) -> Tensor:
        z: Tensor = torch.special.ndtri(v)
        return self.mean + self.std * z

    def pdf(self, x: Tensor) -> Tensor:
        z = (x - self.mean) / self.std
        return torch.exp(-0.5 * z**2) / (self.std * math.sqrt(2 * math.pi))


@dataclass(frozen=True)
class Laplace(Symmetric):
    """The Laplace distribution."""

    mean: float
    scale: float

    def __post_init__(self) -> None:
        require.finite("mean", self.mean)
        require.positive("scale", self.scale)

    def cdf(self, x: Tensor) -> Tensor:
        z = (x - self.mean) / self.scale
        half = 0.5 * torch.exp(-z.abs())
        return torch.where(z < 0, half, 1 - half)

    def icdf(self, v: Tensor) -> Tensor:
        centred = v - 0.5
        return self.mean - self.scale * centred.sign() * torch.log1p(-2 * centred.abs())

    def pdf(self, x: Tensor) -> Tensor:
        return torch.exp(-(x - self.mean).abs() / self.scale) / (2 * self.scale)


def over_log_snr(process: NoiseProcess, distribution: Symmetric) -> Density:
    """The density over u that makes log-SNR follow `distribution`.

    Discrete time takes the nearest timestep (bins split halfway between neighbouring log-SNRs);
    continuous time is exact, cut to the process's own range.
    """
    if process.timesteps is None:
        return PulledBack(process, distribution)
    log_snr = process.log_snr(process.grid())
    # The middle between a finite log-SNR and minus infinity (zero terminal SNR) is minus infinity.
    middle = (log_snr[1:] + log_snr[:-1]) / 2
    end = torch.tensor([math.inf], dtype=torch.float64)
    rising = torch.cat([-end, middle.flip(0), end])
    return Table(edges(process.timesteps), distribution.masses(rising).flip(0))


class PulledBack(Density):
    """p(u) = f(log_snr(u)) |d log_snr / du|, normalised over what float32 can draw of the process's range."""

    def __init__(self, process: NoiseProcess, distribution: Symmetric) -> None:
        self.process, self.distribution = process, distribution
        one = torch.ones(1, dtype=torch.float64)
        self._last = 1.0 if bool(process.log_snr(one).isfinite()) else _LAST
        ends = process.log_snr(torch.tensor([0.0, self._last], dtype=torch.float64))
        # A flow has no time before 2^-24; a little less, so that rounding of that one does not matter.
        self._first = float(process.at_log_snr(ends[:1])) * (1 - 1e-6)
        # Masses are counted from the tail that the range is in: from the other, they would round to 1.
        self._upper = float(ends.clamp(-1e6, 1e6).mean()) > distribution.mean
        self._start, self._end = (float(mass) for mass in self._tail(ends))
        if abs(self._end - self._start) < _LEAST_MASS:
            raise Unsupported(
                f"{distribution} has next to no mass between the process's log-SNRs "
                f"{float(ends[1]):.3g} and {float(ends[0]):.3g}: move its mean or widen it."
            )

    def __repr__(self) -> str:
        return f"PulledBack({self.distribution})"

    def _tail(self, log_snr: Tensor) -> Tensor:
        return self.distribution.cdf(2 * self.distribution.mean - log_snr if self._upper else log_snr)

    def quantile(self, v: Tensor) -> Tensor:
        x = self.distribution.icdf(self._start + v.to(precise(v)) * (self._end - self._start))
        u = self.process.at_log_snr(2 * self.distribution.mean - x if self._upper else x)
        return inside(u.to(v), 0.0, 1.0)

    def pdf(self, u: Tensor) -> Tensor:
        # float32 rounds the last times of a shifted flow to 1, where there is no signal and no density.
        x = u.to(precise(u))
        height = self.distribution.pdf(self.process.log_snr(x)) / abs(self._end - self._start)
        inside = (height > 0) & (x >= self._first) & (x <= self._last)
        return torch.where(inside, height * self.process.log_snr_rate(x).abs(), 0.0).to(u)

    def cdf(self, u: Tensor) -> Tensor:
        mass = (self._tail(self.process.log_snr(u.to(precise(u)))) - self._start) / (self._end - self._start)
        return mass.clamp(0, 1).to(u)

"""Densities over unit time u in [0, 1), each with its inverse CDF, and maps of unit time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.tensors import few


class Density(ABC):
    """A probability density over u in [0, 1)."""

    @abstractmethod
    def quantile(self, v: Tensor) -> Tensor:
        """The u [n] below which a share v [n] of the mass lies; v is in (0, 1)."""

    @abstractmethod
    def pdf(self, u: Tensor) -> Tensor:
        """The density [n] at u [n]."""

    @abstractmethod
    def cdf(self, u: Tensor) -> Tensor:
        """The mass [n] below u [n]."""

    def drawn(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The u [n] of uniforms v [n], and the density [n] there."""
        u = self.quantile(v)
        return u, self.pdf(u)

    def masses(self, borders: Tensor) -> Tensor:
        """The mass [K] between rising borders [K + 1]."""
        return self.cdf(borders).diff()


class Uniform(Density):
    """Every u equally likely."""

    def __repr__(self) -> str:
        return "Uniform()"

    def quantile(self, v: Tensor) -> Tensor:
        return v

    def pdf(self, u: Tensor) -> Tensor:
        return torch.ones_like(u)

    def cdf(self, u: Tensor) -> Tensor:
        return u


class Table(Density):
    """Piecewise constant: `masses` [K], not necessarily normalised, between `borders` [K + 1].

    Learners build one per update on the device of their losses: nothing here reads a value back.
    """

    def __init__(self, borders: Tensor, masses: Tensor) -> None:
        total = torch.cat([masses.new_zeros(1), masses.cumsum(0)])
        # Dividing by the last entry makes it exactly 1, so that no v < 1 falls past the last mass.
        self.borders, self.cumulative, self.shares = borders, total / total[-1], masses / total[-1]
        self._copies: dict[tuple[torch.device, torch.dtype], _Copy] = {}

    def __repr__(self) -> str:
        return f"Table({len(self.borders) - 1} bins)"

    def masses(self, borders: Tensor) -> Tensor:
        # Differences of the cumulative sum would lose small masses near 1.
        own = borders.shape == self.borders.shape and torch.equal(borders.to(self.borders), self.borders)
        return self.shares.to(borders) if own else super().masses(borders)

    def bin_of(self, u: Tensor) -> Tensor:
        """The index [n] of the bin that holds u [n]."""
        return torch.searchsorted(self._copy(u).inner, u.contiguous(), right=True)

    def quantile(self, v: Tensor) -> Tensor:
        return self.drawn(v)[0]

    def drawn(self, v: Tensor) -> tuple[Tensor, Tensor]:
        copy = self._copy(v)
        if few(len(v), v.device) and len(self.shares) <= _LISTED:
            between, bins = copy.lists
            held = [(value, bins[bisect_right(between, value)]) for value in v.tolist()]
            u = [min((value - below) / height + start, end) for value, (below, height, start, end) in held]
            return torch.tensor(u, dtype=v.dtype), torch.tensor([own[1] for _, own in held], dtype=v.dtype)
        index = torch.searchsorted(copy.between, v.contiguous(), right=True)
        # One look-up instead of four: in a small batch every operation takes the same time.
        below, heights, starts, ends = copy.bins.index_select(1, index).unbind()
        above = (v - below).div_(heights)
        # A draw never leaves its bin, so the bin's height is the density there.
        return torch.minimum(above.add_(starts), ends), heights

    def pdf(self, u: Tensor) -> Tensor:
        return self._copy(u).heights.take(self.bin_of(u))

    def cdf(self, u: Tensor) -> Tensor:
        copy, index = self._copy(u), self.bin_of(u)
        mass = copy.cumulative[index] + (u - copy.borders[index]) * copy.heights[index]
        return torch.minimum(mass, copy.cumulative[index + 1])

    def _copy(self, u: Tensor) -> _Copy:
        key = u.device, u.dtype
        if key not in self._copies:
            borders = not_below(self.borders, u.dtype).to(u.device)
            heights = (self.shares / self.borders.diff().to(self.shares)).to(u)
            ends = torch.nextafter(borders[1:], torch.zeros_like(borders[1:]))
            cumulative = self.cumulative.to(u)
            bins = torch.stack([cumulative[:-1], heights, borders[:-1], ends])
            self._copies[key] = _Copy(borders, borders[1:-1], cumulative, cumulative[1:-1], heights, bins)
        return self._copies[key]


_LISTED = 128
"""Bins of a table that is worth reading into Python's lists: learners make one anew after many an update."""


@dataclass(frozen=True)
class _Copy:
    """A table in one dtype on one device."""

    borders: Tensor
    inner: Tensor
    """The borders between bins."""
    cumulative: Tensor
    between: Tensor
    """The mass below each border between bins."""
    heights: Tensor
    bins: Tensor
    """[4, K]: the mass below each bin, its height, its lower border, and the largest number that lies in it.

    Rounding might reach the upper border.
    """

    @cached_property
    def lists(self) -> tuple[list[float], list[list[float]]]:
        """`between` and the transpose of `bins`, as Python's numbers: for few draws on a CPU."""
        return self.between.tolist(), self.bins.T.tolist()


def table(masses: Tensor, borders: Tensor | None = None) -> Table:
    """A checked Table from user values: equal bins unless `borders` says otherwise."""
    masses = torch.as_tensor(masses, dtype=torch.float64).detach().cpu()
    if masses.dim() != 1 or len(masses) == 0:
        raise InvalidParameter(f"a table needs a list of at least one mass, not shape {tuple(masses.shape)}.")
    if (masses < 0).any() or not 0 < masses.sum() < torch.inf:
        raise InvalidParameter("the masses of a table must be finite, 0 or more, and not all 0.")
    if borders is None:
        return Table(edges(len(masses)), masses)
    borders = torch.as_tensor(borders, dtype=torch.float64).detach().cpu()
    if borders.shape != (len(masses) + 1,):
        raise InvalidParameter(f"{len(masses)} masses need {len(masses) + 1} borders, not {borders.numel()}.")
    if borders[0] != 0 or borders[-1] != 1 or (borders.diff() <= 0).any():
        raise InvalidParameter("the borders of a table must rise from exactly 0 to exactly 1.")
    return Table(borders, masses)


def rounded(density: Density, timesteps: int) -> Table:
    """A density drawn as t = round(u * (T - 1)), as some published codes do.

    The first and the last timestep get half a bin each; with floor(u * T), our default, all are equal.
    """
    if timesteps == 1:
        return Table(edges(1), torch.ones(1, dtype=torch.float64))
    middle = (torch.arange(timesteps - 1, dtype=torch.float64) + 0.5) / (timesteps - 1)
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    return Table(edges(timesteps), density.masses(torch.cat([zero, middle, one])))


def centres(count: int) -> Tensor:
    """The middles [count] of equal bins of unit time: where tables over time are read."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def edges(count: int) -> Tensor:
    """The borders [count + 1] of equal bins of unit time."""
    return torch.arange(count + 1, dtype=torch.float64) / count


def not_below(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values [n] in a narrower dtype, rounded up: a border of 0.501 must not let in 0.50099998."""
    rounded = values.to(dtype)
    return torch.where(rounded.to(values.dtype) < values, torch.nextafter(rounded, rounded + 1), rounded)


@lru_cache(maxsize=256)
def limits(low: float, high: float, dtype: torch.dtype) -> tuple[float, float]:
    """The smallest and the largest number of a dtype in [low, high), by arithmetic of plain floats.

    Tensors would be cached on the device, or in the traced graph, of the first caller.
    """
    eps = torch.finfo(dtype).eps
    first, end = (math.ceil(x / _gap(x, eps)) * _gap(x, eps) if x > 0 else 0.0 for x in (low, high))
    # Below a power of two numbers lie twice as close.
    return first, end - _gap(end, eps) / (2 if math.frexp(end)[0] == 0.5 else 1)


def _gap(x: float, eps: float) -> float:
    """The distance from x to the next larger number of a dtype with this eps."""
    return math.ldexp(eps, math.frexp(x)[1] - 1)


def inside(u: Tensor, low: float, high: float) -> Tensor:
    """`u`, kept in [low, high) against rounding."""
    return u.clamp(*limits(low, high, u.dtype))


_NARROWEST = 1e-6


class Warp(ABC):
    """A rising map of unit time into itself, with its inverse."""

    @abstractmethod
    def forward(self, u: Tensor) -> Tensor: ...
    @abstractmethod
    def inverse(self, u: Tensor) -> Tensor: ...
    @abstractmethod
    def rate(self, u: Tensor) -> Tensor:
        """d forward / du."""

    @abstractmethod
    def inside(self, u: Tensor) -> Tensor:
        """Which u have an inverse (bool)."""


@dataclass(frozen=True)
class Shift(Warp):
    """t = s u / (1 + (s - 1) u): more noise for s > 1 (Esser et al. 2024, Eq. 23)."""

    factor: float

    def __post_init__(self) -> None:
        require.positive("shift", self.factor)

    def forward(self, u: Tensor) -> Tensor:
        # Rounding may lift the end above 1, where a flow would have negative signal.
        return (self.factor * u / (1 + (self.factor - 1) * u)).clamp(max=1)

    def inverse(self, u: Tensor) -> Tensor:
        return u / (self.factor - (self.factor - 1) * u)

    def rate(self, u: Tensor) -> Tensor:
        return self.factor / (1 + (self.factor - 1) * u) ** 2

    def inside(self, u: Tensor) -> Tensor:
        return torch.ones_like(u, dtype=torch.bool)


@dataclass(frozen=True)
class Squeeze(Warp):
    """All of unit time into [low, high)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        require.unit_range("the range of unit time", self.low, self.high)
        if self.high - self.low < _NARROWEST:
            raise InvalidParameter(
                f"the range of unit time [{self.low!r}, {self.high!r}) is narrower than float32 can resolve."
            )

    def forward(self, u: Tensor) -> Tensor:
        return inside(self.low + (self.high - self.low) * u, self.low, self.high)

    def inverse(self, u: Tensor) -> Tensor:
        return ((u - self.low) / (self.high - self.low)).clamp(0, 1)

    def rate(self, u: Tensor) -> Tensor:
        return torch.full_like(u, self.high - self.low)

    def inside(self, u: Tensor) -> Tensor:
        return (u >= self.low) & (u < self.high)


@dataclass(frozen=True)
class Moved(Density):
    """A density after a map of unit time."""

    density: Density
    warp: Warp

    def quantile(self, v: Tensor) -> Tensor:
        return inside(self.warp.forward(self.density.quantile(v)), 0.0, 1.0)

    def pdf(self, u: Tensor) -> Tensor:
        inner = self.warp.inverse(u)
        return torch.where(self.warp.inside(u), self.density.pdf(inner) / self.warp.rate(inner), 0.0)

    def cdf(self, u: Tensor) -> Tensor:
        return self.density.cdf(self.warp.inverse(u))


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


def tilted(reference: Density, table: Table) -> Density:
    """The reference density times a table over its own quantiles."""
    return table if isinstance(reference, Uniform) else Tilted(reference, table)

"""Beta densities over unit time, one per example: as tables to draw from, their entropy and log-density.

torch's Beta has no inverse CDF, so draws come from the masses of bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stepwell.core.density import Density, Table, edges, not_below
from stepwell.core.tensors import Lookup, PerExample, precise

LEAST_BINS = 512
"""Fewer timesteps than this are cut into several bins each, so that a table is as accurate as for many."""
_ROWS = 256
"""Examples whose tables are held at a time."""


class BetaDraws(NamedTuple):
    """Draws [B], one from each row of a table."""

    u: PerExample
    """Unit time."""
    log_prob: PerExample
    """The log of the density that u was drawn from."""
    inner: PerExample
    """The value of the Beta variable itself: u, unless timesteps are rounded."""


@dataclass(frozen=True)
class _Ends:
    """The lowest and the highest float32 of every bin: rounding may not carry a draw to a neighbour."""

    low: Lookup
    high: Lookup

    @classmethod
    def of(cls, borders: Tensor) -> _Ends:
        low = not_below(borders, torch.float32)
        return cls(Lookup(low[:-1]), Lookup(torch.nextafter(low[1:], torch.zeros(()))))

    def at(self, index: Tensor, share: Tensor) -> Tensor:
        low, high = self.low.at(index, share.dtype), self.high.at(index, share.dtype)
        return torch.minimum(torch.lerp(low, high, share), high)


class BetaTable:
    """Beta(a, b) over the bins of unit time, mixed with a share `floor` of a reference density.

    The density is constant inside a bin. `rounded` maps to timesteps as t = round(x (T - 1)), the way Kim et
    al.'s code does: the first and the last one get half a bin of x each.
    """

    def __init__(self, timesteps: int, reference: Density, floor: float = 0.0, rounded: bool = False) -> None:
        parts = -(-LEAST_BINS // timesteps)
        self.timesteps, self.bins = timesteps, timesteps * parts
        self.floor = floor
        self.borders = edges(self.bins)
        self.inner = _rounding(timesteps, parts) if rounded and timesteps > 1 else self.borders
        self._reference = Lookup(reference.masses(self.borders))
        self._edges, self._inner_edges = Lookup(self.borders), Lookup(self.inner)
        self._ends, self._inner_ends = _Ends.of(self.borders), _Ends.of(self.inner)
        half = int((self.inner[1:] + self.inner[:-1] < 1).sum())
        self._first, self._last = float(self.inner[1]), 1 - float(self.inner[-2])
        self._low = Lookup(_logs(self.inner[1:half], self.inner[2 : half + 1]))
        self._high = Lookup(_logs(1 - self.inner[half + 1 : -1], 1 - self.inner[half:-2]))

    def log_masses(self, shapes: Tensor) -> Tensor:
        """The log of the mass of Beta(a, b) in every bin, [B, bins] for shapes (a, b) [B, 2]; differentiable.

        In each half of time the power law that may be singular at its end is integrated exactly and the other
        read at the bin's centre of mass: with 1000 bins right to 2e-4 for a and b from 0.3 to 30.
        """
        return self._logits(shapes).log_softmax(1)

    def _logits(self, shapes: Tensor) -> Tensor:
        a, b = shapes[:, :1], shapes[:, 1:]
        low = self._low.on(shapes.device, shapes.dtype)
        high = self._high.on(shapes.device, shapes.dtype)
        parts = [_end(a, b, self._first), _inside(a, b, low), _inside(b, a, high), _end(b, a, self._last)]
        return torch.cat(parts, dim=1)

    def masses(self, shapes: Tensor) -> Tensor:
        """The masses that are drawn from, [B, bins]: the Beta's, mixed with the floor."""
        masses = self._logits(shapes).softmax(1)
        if self.floor == 0:
            return masses
        return torch.lerp(masses, self._reference.on(masses.device, masses.dtype), self.floor)

    def from_uniform(self, shapes: Tensor, v: PerExample) -> BetaDraws:
        """The draws that uniforms v [B] stand for, one from each row's inverse CDF."""
        parts = zip(shapes.split(_ROWS), v.split(_ROWS), strict=True)
        draws = [self._draw(self.masses(rows), uniforms) for rows, uniforms in parts]
        return BetaDraws(*(torch.cat(column) for column in zip(*draws, strict=True)))

    def _draw(self, masses: Tensor, v: PerExample) -> BetaDraws:
        cumulative = masses.cumsum(1)
        # The last entry becomes exactly 1, so that no v < 1 falls past the last mass.
        cumulative = cumulative / cumulative[:, -1:]
        bins = torch.searchsorted(cumulative, v[:, None], right=True).clamp_(max=self.bins - 1)
        mass = masses.gather(1, bins)[:, 0]
        above = cumulative.gather(1, bins)[:, 0]
        share = (1 - (above - v) / mass).clamp(0, 1)
        index = bins[:, 0]
        u = self._ends.at(index, share)
        return BetaDraws(u, (mass * self.bins).log(), self._inner_ends.at(index, share))

    def log_prob(self, shapes: Tensor, inner: PerExample) -> PerExample:
        """The log-density of draws, from their Beta variables [B] and shapes [B, 2]; differentiable."""
        borders = self._inner_edges.on(inner.device, inner.dtype)
        bins = torch.searchsorted(borders[1:-1], inner.contiguous()[:, None], right=True)
        return (self.masses(shapes).gather(1, bins)[:, 0] * self.bins).log()

    def mean(self, shapes: Tensor) -> Table:
        """The density of a batch: the mean of its rows."""
        rows = [self.masses(part).sum(0) for part in shapes.split(_ROWS)]
        total = torch.stack(rows).sum(0)
        return Table(self._edges.on(total.device, precise(total)), total)

    def shares(self, borders: Tensor) -> Tensor:
        """The share of each bin that lies in each stratum between rising borders [K + 1]: [bins, K]."""
        low = torch.maximum(self.borders[:-1, None], borders[None, :-1])
        high = torch.minimum(self.borders[1:, None], borders[None, 1:])
        return (high - low).clamp(min=0) * self.bins


def _end(power: Tensor, other: Tensor, width: float) -> Tensor:
    """ln of the integral of x^(power - 1) (1 - x)^(other - 1) over the bin [0, width]: [B, 1]."""
    centre = width * power / (power + 1)
    return power * math.log(width) - torch.log(power) + (other - 1) * torch.log1p(-centre)


def _inside(power: Tensor, other: Tensor, logs: Tensor) -> Tensor:
    """The same over bins away from 0, [B, k] for powers [B, 1]."""
    far_end, ratio, across, bend = logs.unbind()
    integral = power * far_end + torch.log(-torch.expm1(power * ratio)) - torch.log(power)
    return integral + (other - 1) * (across + (power - 1) * bend)


def _logs(near: Tensor, far: Tensor) -> Tensor:
    """Terms of bins [near, far] [k]: ln far, ln(near / far), ln(1 - middle), and the bend, as [4, k].

    The centre of mass depends on the power law: the bend moves ln(1 - middle) there, to second order.
    """
    middle, width = (near + far) / 2, far - near
    bend = -(width**2) / (12 * middle * (1 - middle))
    return torch.stack([torch.log(far), torch.log(near / far), torch.log1p(-middle), bend])


def _rounding(timesteps: int, parts: int) -> Tensor:
    """Borders [bins + 1] of what round(x (T - 1)) sends to each timestep, each cut into parts."""
    inner = (torch.arange(timesteps - 1, dtype=torch.float64) + 0.5) / (timesteps - 1)
    whole = torch.cat([inner.new_zeros(1), inner, inner.new_ones(1)])
    cuts = torch.arange(parts, dtype=torch.float64) / parts
    inside = whole[:-1, None] + whole.diff()[:, None] * cuts
    return torch.cat([inside.flatten(), whole[-1:]])


_CLEAR_OF_ENDS = 2.0**-20
"""The log-density of a Beta is unbounded at 0 and 1 where a or b is below 1."""


def beta_entropy(shapes: Tensor) -> Tensor:
    """The entropy [B] of Beta(a, b) in nats, for shapes (a, b) [B, 2]."""
    a, b = shapes.unbind(1)
    spread = (a - 1) * torch.digamma(a) + (b - 1) * torch.digamma(b)
    return _log_beta(a, b) - spread + (a + b - 2) * torch.digamma(a + b)


def beta_log_density(shapes: Tensor, x: PerExample) -> PerExample:
    """ln Beta(x; a, b) [B], kept clear of the ends of [0, 1]."""
    a, b = shapes.unbind(1)
    x = x.clamp(_CLEAR_OF_ENDS, 1 - _CLEAR_OF_ENDS)
    return (a - 1) * x.log() + (b - 1) * torch.log1p(-x) - _log_beta(a, b)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)

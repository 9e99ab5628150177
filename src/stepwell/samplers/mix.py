"""A mixture of two samplers: `mix(sampler, uniform, 0.1)` is a floor under the density."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.sampler import Draw, State, TimestepSampler
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick
from stepwell.samplers.wrapped import Wrapped, uncorrected


def mix(sampler: TimestepSampler, other: TimestepSampler, share: float) -> TimestepSampler:
    """Draw a `share` of the examples from `other`; only `sampler` learns."""
    return Mix(uncorrected(sampler, "mix"), uncorrected(other, "mix"), require.between("share", share, 0, 1))


class Mix(Wrapped):
    """One uniform does both jobs, so that stratified draws stay stratified in each part."""

    def __init__(self, sampler: TimestepSampler, other: TimestepSampler, share: float) -> None:
        super().__init__(sampler, f"mix[{share:g}]")
        self._other, self._share = other, share

    def __repr__(self) -> str:
        return f"mix({self.sampler!r}, {self._other!r}, {self._share:g})"

    def place(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        from_other = v < self._share
        # v given its side of `share` is uniform again; each sampler also sees the other's v, unused.
        rest = ((v - self._share) / max(1 - self._share, 1e-6)).clamp(2**-24, 1 - 2**-24)
        part = (v / max(self._share, 1e-6)).clamp(2**-24, 1 - 2**-24)
        one, two = self.sampler.place(rest, x0, tick), self._other.place(part, x0, tick)
        u = torch.where(from_other, two.u, one.u)
        return Draw(u, self.density(u, x0).log(), torch.ones_like(u), one.action)

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return torch.lerp(self.sampler.density(u, x0), self._other.density(u, x0), self._share)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return torch.lerp(self.sampler.cdf(u, x0), self._other.cdf(u, x0), self._share)

    def reaches(self, u: Tensor) -> Tensor:
        if self._share in (0, 1):
            return (self._other if self._share else self.sampler).reaches(u)
        return self.sampler.reaches(u) | self._other.reaches(u)

    def state_dict(self) -> State:
        return {**super().state_dict(), "other": self._other.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._other.load_state_dict(state["other"])

"""Samplers on other times: inside a range, or shifted towards noise."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from stepwell.core.density import Shift, Squeeze, Warp, inside
from stepwell.core.errors import Unsupported
from stepwell.core.feedback import Feedback
from stepwell.core.probe import ProbeSpec, Times
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Draw, Metrics, TimestepSampler
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick
from stepwell.samplers.combinators import Wrapped, uncorrected


def within(sampler: TimestepSampler, low: float, high: float) -> TimestepSampler:
    """The sampler's whole shape inside [low, high) of unit time."""
    return Warped(uncorrected(sampler, "within"), Squeeze(low, high), f"within[{low:g}, {high:g}]")


def shift(sampler: TimestepSampler, factor: float, process: NoiseProcess) -> TimestepSampler:
    """SD3's resolution shift, u -> s u / (1 + (s - 1) u), unless the process has it already."""
    if process.shift != 1 and factor != 1:
        raise Unsupported(
            f"{process} already shifts its timesteps by {process.shift:g}; shifting by {factor:g} as well "
            f"would shift by {process.shift * factor:g}. Leave out shift, or build the process without it."
        )
    return Warped(uncorrected(sampler, "shift"), Shift(factor), f"shift[{factor:g}]")


class Warped(Wrapped):
    """A sampler whose unit time is mapped; it draws, learns and is probed in its own."""

    def __init__(self, sampler: TimestepSampler, warp: Warp, label: str) -> None:
        super().__init__(sampler, label)
        self._warp = warp

    @property
    def probe(self) -> ProbeSpec | None:
        spec = self.sampler.probe
        if spec is None:
            return None
        mapped: ProbeSpec = spec.mapped(self._outside)
        return mapped

    def _outside(self, times: Times) -> Times:
        return tuple(self._warp.forward(torch.tensor(times, dtype=torch.float64)).tolist())

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        inner = self.sampler.from_uniform(v, x0, tick)
        log_prob = inner.log_prob - self._warp.rate(inner.u).log()
        return Draw(inside(self._warp.forward(inner.u), 0.0, 1.0), log_prob, inner.correction, inner.action)

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        inner = self._warp.inverse(u)
        height = self.sampler.density(inner, x0) / self._warp.rate(inner)
        return torch.where(self._warp.inside(u), height, 0.0)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self.sampler.cdf(self._warp.inverse(u), x0)

    def learn(self, feedback: Feedback) -> Metrics:
        u = inside(self._warp.inverse(feedback.u), 0.0, 1.0)
        # A floor or a warm-up outside a range also draws where the sampler inside knows nothing.
        counts = self._warp.inside(feedback.u)
        if feedback.counts is not None:
            counts = counts & feedback.counts
        return self.sampler.learn(replace(feedback, u=u, counts=counts))

    def support(self, u: Tensor) -> Tensor:
        return self._warp.inside(u) & self.sampler.support(self._warp.inverse(u))

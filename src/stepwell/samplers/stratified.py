"""Low-discrepancy draws: one per stratum of the global batch, at no cost (after Kingma et al. 2021, VDM)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from stepwell.core.lookup import precise
from stepwell.core.sampler import Draw, TimestepSampler
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick
from stepwell.samplers.wrapped import Wrapped

_GOLDEN = 0.6180339887498949


def stratified(sampler: TimestepSampler) -> TimestepSampler:
    """Spread a sampler's draws evenly over the batch, the ranks and the accumulation steps."""
    return Stratified(sampler)


class Stratified(Wrapped):
    """Replaces independent uniforms by one per stratum, before the inverse CDF.

    World x B strata are dealt to examples in turn, starting anywhere, so that each rank covers all of
    time and each example is by itself an ordinary draw. Micro-batches move through their strata by
    the golden ratio, which is even for any number of accumulation steps: nobody has to know it.
    """

    def __init__(self, sampler: TimestepSampler) -> None:
        super().__init__(sampler, "stratified")
        self.reference = sampler.reference

    def place(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        return self.sampler.place(_strata(v, tick), x0, tick)


def _strata(v: PerExample, tick: Tick) -> PerExample:
    """Uniforms [B] like v, one in each of this rank's strata."""
    count = len(v) * tick.world
    if count == 0:
        return v
    first = tick.shared().key("first stratum") % count
    index = (torch.arange(len(v), device=v.device) * tick.world + tick.rank + first) % count
    # All micro-batches of a step start from the same place in each stratum.
    inside = replace(tick, micro=0).uniform("strata", len(v), v.device).to(precise(v))
    inside = (inside + _GOLDEN * tick.micro) % 1
    return ((index + inside) / count).to(v).clamp(2**-24, 1 - 2**-24)

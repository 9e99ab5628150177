"""Importance correction: draw wherever it helps, and keep the objective that was chosen."""

from __future__ import annotations

from torch import Tensor

from stepwell.core.density import Density, centres
from stepwell.core.errors import Unsupported
from stepwell.core.sampler import Draw, TimestepSampler
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick
from stepwell.samplers.wrapped import Wrapped, uncorrected

_CHECKED_POINTS = 4096


def unbiased(sampler: TimestepSampler, reference: Density) -> TimestepSampler:
    """Correct every loss by reference / density, so that its expectation is the reference's."""
    uncorrected(sampler, "unbiased")
    u = centres(_CHECKED_POINTS)
    missing = u[~sampler.reaches(u) & (reference.pdf(u) > 0)]
    if len(missing):
        raise Unsupported(
            f"{sampler!r} never draws u from {float(missing.min()):.4f} to {float(missing.max()):.4f}, where "
            "the objective has weight: no correction can restore that. Mix it with a floor first, "
            "mix(sampler, uniform, 0.1), or leave the objective changed (no unbiased)."
        )
    return Unbiased(sampler, reference)


class Unbiased(Wrapped):
    """The outermost combinator, but for `stratified`."""

    def __init__(self, sampler: TimestepSampler, reference: Density) -> None:
        super().__init__(sampler, "unbiased")
        self._objective = self.reference = reference

    def place(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        drawn = self.sampler.place(v, x0, tick)
        correction = self._objective.pdf(drawn.u) * (-drawn.log_prob).exp()
        return Draw(drawn.u, drawn.log_prob, correction, drawn.action)

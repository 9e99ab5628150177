"""Uniform draws first: a learner's early losses say little."""

from __future__ import annotations

from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Uniform
from stepwell.core.sampler import Draw, State, TimestepSampler
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick
from stepwell.samplers.static import Static
from stepwell.samplers.wrapped import Wrapped, uncorrected


def warm_up(sampler: TimestepSampler, steps: int) -> TimestepSampler:
    """Draw uniformly for the first `steps` optimizer steps; the sampler learns from the start."""
    return WarmUp(uncorrected(sampler, "warm_up"), require.count("steps", steps))


class WarmUp(Wrapped):
    """`density` is that of the step last drawn for."""

    def __init__(self, sampler: TimestepSampler, steps: int) -> None:
        super().__init__(sampler, f"warm_up[{steps}]")
        self._steps, self._step = steps, 0
        self._uniform = Static(Uniform(), "uniform")

    def _now(self) -> TimestepSampler:
        return self._uniform if self._step < self._steps else self.sampler

    def place(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        self._step = tick.step
        return self._now().place(v, x0, tick)

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self._now().density(u, x0)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self._now().cdf(u, x0)

    def state_dict(self) -> State:
        return {**super().state_dict(), "step": self._step}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._step = state["step"]

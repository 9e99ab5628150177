"""The examples of a probe: which images, at which times, with which noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepwell.core.condition import joined, leaves, rebuilt, select
from stepwell.core.density import Density, inside
from stepwell.core.sampler import State
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick


class Pool:
    """The last `size` examples, over micro-batches and steps if they are small; no copies if not."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.x0: Tensor | None = None
        self.condition: Any = None
        self._restored: list[Tensor] = []

    def see(self, x0: Tensor, condition: Any) -> None:
        """Take in a micro-batch."""
        x0 = x0.detach()
        if self._restored:
            self.x0, *kept = (tensor.to(x0.device) for tensor in self._restored)
            self.condition, self._restored = rebuilt(condition, kept), []
        if len(x0) < self.size and self.x0 is not None:
            room = slice(max(0, len(self.x0) + len(x0) - self.size), None)
            # Views would keep whole old batches alive; these are few and small.
            condition = joined([select(self.condition, room), condition])
            x0 = torch.cat([self.x0[room], x0])
        self.x0, self.condition = x0[-self.size :], select(condition, slice(-self.size, None))

    def state_dict(self) -> State:
        """The examples kept, if batches are so small that they come from several."""
        kept = self._restored or ([] if self.x0 is None else [self.x0, *leaves(self.condition)])
        return {str(index): tensor.clone() for index, tensor in enumerate(kept)}

    def load_state_dict(self, state: State) -> None:
        self._restored = [state[str(index)] for index in range(len(state))]


def times(tick: Tick, stream: str, count: int, device: torch.device) -> PerExample:
    """Uniforms [count] of this rank: its part of the ones that a single process would draw for all."""
    shared = tick.shared().uniform(stream, count * tick.world, device)
    return shared[count * tick.rank : count * (tick.rank + 1)]


def between(reference: Density, v: PerExample, low: float, high: float) -> PerExample:
    """Times between two borders, distributed there as the objective is."""
    ends = reference.cdf(torch.tensor([low, high], dtype=torch.float64)).tolist()
    return inside(reference.quantile(ends[0] + (ends[1] - ends[0]) * v), low, high)


def noise(tick: Tick, stream: str, like: Tensor) -> Tensor:
    """Normal noise for examples [n, ...] of this rank, each a function of its place among all ranks'."""
    generator = torch.Generator(like.device)
    shared, first = tick.shared(), tick.rank * len(like)
    result = torch.empty_like(like)
    for row in range(len(like)):
        generator.manual_seed(shared.key(f"{stream}/{first + row}"))
        result[row].normal_(generator=generator)
    return result

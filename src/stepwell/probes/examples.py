"""The inputs of a measurement: pooled examples, times, noise and dropout, all reproducible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stepwell.core import saved_state
from stepwell.core.condition import leaves, rebuilt
from stepwell.core.density import Density, inside
from stepwell.core.errors import StateMismatch, Unsupported
from stepwell.core.tensors import PerExample, State
from stepwell.core.tick import Tick


class Pool:
    """The last `size` examples, over micro-batches and steps if these are small; no copies if not."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.condition: Any = None
        self._kept: list[Tensor] = []

    @property
    def x0(self) -> Tensor | None:
        """[<= size, ...]: the newest last."""
        return self._kept[0] if self._kept else None

    def add(self, x0: Tensor, condition: Any) -> None:
        """Add a micro-batch."""
        new = [tensor.detach() for tensor in (x0, *leaves(condition))]
        if len(x0) < self.size:
            new = _joined([tensor.to(x0.device) for tensor in self._kept], new)
        self._kept = [tensor[-self.size :] for tensor in new]
        self.condition = rebuilt(condition, self._kept[1:])

    def state_dict(self) -> State:
        """The kept examples: where batches are small, the next measurement needs them."""
        return {str(index): tensor.clone() for index, tensor in enumerate(self._kept)}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken; the condition's structure comes with the next batch."""
        names = [str(index) for index in range(len(state))]
        kept = [saved_state.tensor(state, name, "a probe's examples", finite=False) for name in names]
        if any(tensor.dim() == 0 or len(tensor) != len(kept[0]) for tensor in kept):
            raise StateMismatch("the state that was given to a probe has not one condition for each example.")
        self._kept = kept


def _joined(old: Sequence[Tensor], new: Sequence[Tensor]) -> list[Tensor]:
    """Examples and their conditions, one batch after the other, copied: the loop may reuse its memory."""
    if not old:
        return [tensor.clone() for tensor in new]
    shapes = [[tuple(tensor.shape[1:]) for tensor in part] for part in (old, new)]
    if shapes[0] != shapes[1]:
        raise Unsupported(
            f"a probe collects batches as small as {len(new[0])} until it has enough examples, but theirs "
            f"changed from {shapes[0]} to {shapes[1]}: train on batches of one shape, or give the sampler "
            f"images={max(1, len(new[0]) // 2)}, so that one batch is enough."
        )
    return [torch.cat(both) for both in zip(old, new, strict=True)]


def times(tick: Tick, stream: str, count: int, device: torch.device) -> PerExample:
    """Uniforms [count] of this rank: its part of those that a single process would draw for all."""
    shared = tick.shared().uniform(stream, count * tick.world, device)
    return shared[count * tick.rank : count * (tick.rank + 1)]


def between(reference: Density, v: PerExample, low: float, high: float) -> PerExample:
    """Times between two borders, distributed there as the objective is."""
    ends = reference.cdf(torch.tensor([low, high], dtype=torch.float64)).tolist()
    return inside(reference.quantile(ends[0] + (ends[1] - ends[0]) * v), low, high)


def noise(tick: Tick, stream: str, like: Tensor) -> Tensor:
    """Normal noise for this rank's examples [n, ...], each a function of its index among all ranks'."""
    generator = torch.Generator(like.device)
    shared, first = tick.shared(), tick.rank * len(like)
    result = torch.empty_like(like)
    for row in range(len(like)):
        generator.manual_seed(shared.key(f"{stream}/{first + row}"))
        result[row].normal_(generator=generator)
    return result


@contextmanager
def forked(tick: Tick, stream: str, device: torch.device) -> Iterator[None]:
    """Seed torch's generators, which dropout uses, from a named stream of the tick; restore them after."""
    devices = [] if device.type == "cpu" else [device]
    # fork_rng always keeps the CPU's state; without other devices, any existing type will do.
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        torch.default_generator.manual_seed(tick.key(stream))
        if devices:
            torch.manual_seed(tick.key(stream))
        yield

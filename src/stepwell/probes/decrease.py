"""Measures how much one update lowered the loss: before minus after (Kim et al. 2025, Algorithm 2)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepwell.core.condition import leaves, rebuilt
from stepwell.core.feedback import DecreaseSignal
from stepwell.core.probe import DecreaseSpec
from stepwell.core.tensors import PerExample, State
from stepwell.core.tick import Tick
from stepwell.probes.context import Probe, ProbeContext
from stepwell.probes.examples import forked, noise


class Decrease(Probe):
    """Measures the same examples at the same times with the same noise, and dropout off, twice.

    The official code draws noise and dropout afresh after the update (`fresh_noise`, `train_mode`): what it
    measures is then mostly their difference. Every network call has the shape of a training batch, and every
    rank makes as many, so that compiled kernels and FSDP's collectives fit.
    """

    def __init__(self) -> None:
        self._before: _Losses | None = None

    def before(self, context: ProbeContext, spec: DecreaseSpec) -> None:
        self._before = _Measurement(context, spec, "before").losses()

    def after(self, context: ProbeContext, spec: DecreaseSpec) -> DecreaseSignal | None:
        """The decrease since `before`; None if that was not called for this update."""
        before, self._before = self._before, None
        if before is None or (before.tick, before.spec) != (context.tick, spec):
            return None
        now = _Measurement(context, spec, "after").losses()
        row, rewards = before.row - now.row, before.rewards - now.rewards
        if spec.grid:
            row = context.group.gather(row)[: len(spec.grid)]
        return DecreaseSignal(row, context.group.gather(rewards))

    def state_dict(self) -> State:
        """Nothing is kept from one update to the next."""
        return {"kind": "decrease"}

    def load_state_dict(self, state: State) -> None:
        self._before = None


@dataclass(frozen=True, slots=True)
class _Losses:
    """This rank's share of one example's losses at the grid, its examples' losses at the subset, and when."""

    tick: Tick
    spec: DecreaseSpec
    row: Tensor
    rewards: Tensor


@dataclass(frozen=True, slots=True)
class _Measurement:
    """The losses that a spec asks for, before or after an update."""

    context: ProbeContext
    spec: DecreaseSpec
    moment: str

    def losses(self) -> _Losses:
        # Forked in eval mode as well: without a known network, dropout may stay on.
        stream = f"decrease dropout {self.moment if self.spec.train_mode else ''}"
        mode = nullcontext() if self.spec.train_mode else self.context.evaluating()
        with torch.no_grad(), forked(self.context.tick, stream, self.context.x0.device), mode:
            return _Losses(self.context.tick, self.spec, self._row(), self._rewards())

    def _row(self) -> Tensor:
        """[ceil(G / world)]: this rank's share of one example's losses at the grid, the last one padded."""
        grid, group, batch = self.spec.grid, self.context.group, len(self.context.x0)
        parts = [torch.zeros(0, device=self.context.x0.device)]
        share, shared = -(-len(grid) // group.world), self.context.tick.shared()
        example, condition = self._one_example() if grid else (self.context.x0, None)
        for start in range(group.rank * share, (group.rank + 1) * share, batch):
            points = [min(point, len(grid) - 1) for point in range(start, start + batch)]
            # Each point of the grid has its own noise, whichever rank measures it.
            drawn = [noise(shared, self._noise(f"row {k}"), example[:1]) for k in points]
            u = torch.tensor([grid[k] for k in points], dtype=torch.float32, device=example.device)
            parts.append(self.context.loss_at(example, torch.cat(drawn), u, condition, self.spec.target))
        return torch.cat(parts)[:share]

    def _rewards(self) -> Tensor:
        """[B, S]: the losses of this rank's examples at the subset."""
        return torch.stack([self._at(k, u) for k, u in enumerate(self.spec.subset)], dim=1)

    def _at(self, index: int, time: float) -> PerExample:
        x0 = self.context.x0
        u = torch.full((len(x0),), time, dtype=torch.float32, device=x0.device)
        drawn = noise(self.context.tick, self._noise(f"subset {index}"), x0)
        return self.context.loss_at(x0, drawn, u, self.context.condition, self.spec.target)

    def _noise(self, stream: str) -> str:
        return f"decrease {stream} {self.moment if self.spec.fresh_noise else ''}"

    def _one_example(self) -> tuple[Tensor, Any]:
        """One example of all ranks' batches, the same on every rank, repeated to a batch."""
        x0, condition, group = self.context.x0, self.context.condition, self.context.group
        chosen = self.context.tick.shared().key("decrease example") % (len(x0) * group.world)
        owner, row = divmod(chosen, len(x0))

        def spread(tensor: Tensor) -> Tensor:
            # Every rank sends one row and all take the owner's: less than whole batches.
            rows = group.gather(tensor[row : row + 1].contiguous())
            return torch.empty_like(tensor).copy_(rows[owner])

        return spread(x0), rebuilt(condition, [spread(leaf) for leaf in leaves(condition)])

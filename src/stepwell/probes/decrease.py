"""Measures how much one update lowered the loss: before minus after (Kim et al. 2025, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from stepwell.core import saved_state
from stepwell.core.condition import leaves, rebuilt
from stepwell.core.feedback import DecreaseSignal
from stepwell.core.probe import DecreaseSpec, Times
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
        self._before: _Before | None = None
        self._earlier: list[Tensor] = []
        """An example [1, ...] of the last measurement's batch and its condition, equal on every rank."""

    def before(self, context: ProbeContext, spec: DecreaseSpec) -> None:
        example = self._earlier if spec.earlier_example and self._earlier else _one_example(context, spec)
        losses = _Measurement(context, spec, example, "before").losses()
        weights = WeightsBefore(context.parameters()) if spec.late else None
        self._before = _Before(context.tick, spec, example, losses, weights)

    def after(self, context: ProbeContext, spec: DecreaseSpec) -> DecreaseSignal | None:
        """The decrease since `before`; None if that was not called for this update."""
        before, self._before = self._before, None
        if before is None or (before.tick, before.spec) != (context.tick, spec):
            return None
        if spec.earlier_example:
            self._earlier = [row.clone() for row in _one_example(context, spec)]
        now = _Measurement(context, spec, before.example, "after").losses()
        row, rewards = before.losses.row - now.row, before.losses.rewards - now.rewards
        if spec.grid:
            row = context.group.gather(row)[: len(spec.grid)]
        if before.weights is None:
            return DecreaseSignal(row, context.group.gather(rewards))
        return DecreaseSignal(row, rewards, _Late(context, before, before.weights))

    def state_dict(self) -> State:
        """The example that the next row is of, if the spec wants an earlier one."""
        return {"kind": "decrease"} | ({"earlier": list(self._earlier)} if self._earlier else {})

    def load_state_dict(self, state: State) -> None:
        earlier = state.get("earlier", [])
        rows = dict(enumerate(earlier)) if isinstance(earlier, list) else {}
        self._before, self._earlier = (
            None,
            [saved_state.tensor(rows, number, "a decrease probe", finite=False) for number in rows],
        )


@dataclass(frozen=True, slots=True)
class _Losses:
    """This rank's share of one example's losses at the grid, and its examples' losses at the subset."""

    row: Tensor
    rewards: Tensor


class WeightsBefore:
    """A copy of parameters, made before they move; FSDP's shards are copied as they are."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = parameters
        self._copies = [parameter.detach().clone() for parameter in parameters]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The parameters as they were, and afterwards as they are, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # In place, since DDP, optimizers and compiled graphs hold on to these tensors; one at a time, so that
        # no second copy of all is needed.
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            now = parameter.detach().clone()
            parameter.copy_(copy)
            copy.copy_(now)


@dataclass(frozen=True, slots=True)
class _Before:
    """What is known of an update before it."""

    tick: Tick
    spec: DecreaseSpec
    example: list[Tensor]
    losses: _Losses
    weights: WeightsBefore | None


@dataclass(frozen=True, slots=True)
class _Late:
    """Measures the decrease at times that were chosen after the update."""

    context: ProbeContext
    before: _Before
    weights: WeightsBefore

    def __call__(self, times: Times) -> Tensor:
        """[B, n]: the rewards of all ranks' examples."""
        spec = replace(self.before.spec, subset=times)
        now = _Measurement(self.context, spec, self.before.example, "after").rewards()
        with self.weights.restored():
            then = _Measurement(self.context, spec, self.before.example, "before").rewards()
        return self.context.group.gather(then - now)


@dataclass(frozen=True, slots=True)
class _Measurement:
    """The losses that a spec asks for, before or after an update."""

    context: ProbeContext
    spec: DecreaseSpec
    example: list[Tensor]
    moment: str

    def losses(self) -> _Losses:
        with self._measuring():
            row, x0 = self._row(), self.context.x0
            return _Losses(row, x0.new_zeros(len(x0), 0) if self.spec.late else self._rewards())

    def rewards(self) -> Tensor:
        """[B, S]: the losses of this rank's examples at the subset."""
        with self._measuring():
            return self._rewards()

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        # Forked in eval mode as well: without a known network, dropout may stay on.
        stream = f"decrease dropout {self.moment if self.spec.train_mode else ''}"
        mode = nullcontext() if self.spec.train_mode else self.context.evaluating()
        with torch.no_grad(), forked(self.context.tick, stream, self.context.x0.device), mode:
            yield

    def _row(self) -> Tensor:
        """[ceil(G / world)]: this rank's share of one example's losses at the grid, the last one padded."""
        grid, group, batch = self.spec.grid, self.context.group, len(self.context.x0)
        parts = [torch.zeros(0, device=self.context.x0.device)]
        share, shared = -(-len(grid) // group.world), self.context.tick.shared()
        example, condition = self._repeated() if grid else (self.context.x0, None)
        for start in range(group.rank * share, (group.rank + 1) * share, batch):
            points = [min(point, len(grid) - 1) for point in range(start, start + batch)]
            # Each point of the grid has its own noise, whichever rank measures it.
            drawn = [noise(shared, self._noise(f"row {k}"), example[:1]) for k in points]
            u = torch.tensor([grid[k] for k in points], dtype=torch.float32, device=example.device)
            parts.append(self._losses(example, torch.cat(drawn), u, condition))
        return torch.cat(parts)[:share]

    def _rewards(self) -> Tensor:
        return torch.stack([self._at(k, u) for k, u in enumerate(self.spec.subset)], dim=1)

    def _at(self, index: int, time: float) -> PerExample:
        x0 = self.context.x0
        u = torch.full((len(x0),), time, dtype=torch.float32, device=x0.device)
        drawn = noise(self.context.tick, self._noise(f"subset {index}"), x0)
        return self._losses(x0, drawn, u, self.context.condition)

    def _losses(self, x0: Tensor, drawn: Tensor, u: PerExample, condition: Any) -> PerExample:
        losses = self.context.loss_at(x0, drawn, u, condition, self.spec.target)
        return losses * x0[0].numel() if self.spec.squared_norm else losses

    def _noise(self, stream: str) -> str:
        return f"decrease {stream} {self.moment if self.spec.fresh_noise else ''}"

    def _repeated(self) -> tuple[Tensor, Any]:
        """The row's example and its condition as often as a batch has examples, in the batch's layout."""
        x0, condition = self.context.x0, self.context.condition
        tensors = [
            torch.empty_like(like).copy_(row)
            if row.shape[1:] == like.shape[1:]
            else row.to(like).expand(len(like), *row.shape[1:]).contiguous()
            for row, like in zip(self.example, (x0, *leaves(condition)), strict=True)
        ]
        return tensors[0], rebuilt(condition, tensors[1:])


@torch.no_grad()
def _one_example(context: ProbeContext, spec: DecreaseSpec) -> list[Tensor]:
    """One example of all ranks' batches [1, ...] and the leaves of its condition, the same on every rank."""
    x0, group = context.x0, context.group
    if not spec.grid:
        return []
    chosen = context.tick.shared_key("decrease example") % (len(x0) * group.world)
    owner, row = divmod(chosen, len(x0))
    # Every rank sends one row and all take the owner's: less than whole batches.
    rows = (tensor[row : row + 1].contiguous() for tensor in (x0, *leaves(context.condition)))
    return [group.gather(mine)[owner : owner + 1].detach() for mine in rows]

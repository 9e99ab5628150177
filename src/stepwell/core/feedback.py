"""What a sampler may ask to be measured, and what it hears back: plain values, no model, no weighting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.group import WorkerGroup
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick

ProbeKind = Literal["gradients", "decrease"]


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """What a sampler wants measured, and how often; the sampler owns these numbers, nobody else.

    `gradients` measures strata between `borders` of unit time, one a step, round-robin.
    `decrease` measures the fall of the loss over one update at the times `subset`.
    """

    kind: ProbeKind
    every_steps: int
    borders: tuple[float, ...] = ()
    subset: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require.one_of("probe kind", self.kind, ("gradients", "decrease"))
        require.count("every_steps", self.every_steps)
        where = self.borders if self.kind == "gradients" else self.subset
        name, least = ("borders", 2) if self.kind == "gradients" else ("subset", 1)
        if len(where) < least:
            raise InvalidParameter(f"a {self.kind} probe needs at least {least} {name}.")
        rising = all(a < b for a, b in pairwise(self.borders))
        if not rising or any(not 0 <= u <= 1 for u in self.borders + self.subset):
            raise InvalidParameter(f"the {name} of a probe must lie in [0, 1] and borders must rise.")

    def due(self, step: int) -> bool:
        """Whether to measure at this step: from the counter alone, so that all ranks agree."""
        return step % self.every_steps == 0

    def stratum(self, step: int) -> int:
        """The stratum whose turn it is at a step that is due."""
        return (step // self.every_steps) % (len(self.borders) - 1)


@dataclass(frozen=True, slots=True)
class Signal:
    """What a probe measured: named tensors, equal on every rank once reduced."""

    kind: ProbeKind
    values: Mapping[str, Tensor]

    def reduced(self, group: WorkerGroup) -> Signal:
        """The mean over the worker group."""
        return replace(self, values={name: group.mean(value) for name, value in self.values.items()})


@dataclass(frozen=True, slots=True)
class Feedback:
    """What one update tells a sampler: where it trained, how large the losses were, what a probe saw."""

    tick: Tick
    u: PerExample
    plain: PerExample
    """[B]: the loss on the network's own target, without weighting or correction."""
    weighted: PerExample
    """[B]: the loss times the weighting, without correction."""
    action: Tensor | None = None
    signal: Signal | None = None
    counts: Tensor | None = None
    """[B] bool: which examples lie where the sampler draws; None: all."""

    def __post_init__(self) -> None:
        if not self.u.shape == self.plain.shape == self.weighted.shape or self.u.dim() != 1:
            raise InvalidParameter(
                "feedback needs one value per example: u, plain and weighted have shapes "
                f"{tuple(self.u.shape)}, {tuple(self.plain.shape)} and {tuple(self.weighted.shape)}. "
                "Pass losses before they are averaged (reduction='none', then the mean over each example)."
            )

    def gathered(self, group: WorkerGroup) -> Feedback:
        """The same on every rank: all examples of the group, in rank order. Batches must be equal."""
        if group.world == 1:
            return self
        both = group.gather(torch.stack([self.u, self.plain.to(self.u), self.weighted.to(self.u)], dim=1))
        u, plain, weighted = both.unbind(dim=1)
        action = None if self.action is None else group.gather(self.action)
        signal = None if self.signal is None else self.signal.reduced(group)
        return replace(self, u=u, plain=plain, weighted=weighted, action=action, signal=signal)

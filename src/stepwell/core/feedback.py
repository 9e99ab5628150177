"""What a sampler hears back: plain values, no model, no weighting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter, NonFiniteLoss
from stepwell.core.ranks import WorkerGroup
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick


@dataclass(frozen=True, slots=True)
class GradientSignal:
    """The gradients of one stratum; equal on every rank."""

    stratum: int
    halves: Tensor
    """[2, d]: sketches of the mean gradient of two halves of different images.

    The first is of the loss that is trained, the second of the target; inner products are those of the
    gradients (in Adam's metric, if the spec says so).
    """
    images: int
    """In each half."""


@dataclass(frozen=True, slots=True)
class DecreaseSignal:
    """How much one update lowered the target's loss; equal on every rank."""

    row: Tensor
    """[G]: of one example, at the times of the spec's grid."""
    rewards: Tensor
    """[B, S]: of every example of the micro-batch drawn last, over all ranks, at the spec's subset."""


Signal: TypeAlias = GradientSignal | DecreaseSignal


@dataclass(frozen=True, slots=True)
class Feedback:
    """What one update tells a sampler: where it trained, how large the losses were, what a probe saw."""

    tick: Tick
    u: PerExample
    plain: PerExample
    """[B]: the loss on the network's own target, without weighting or correction; NaN if unobserved."""
    weighted: PerExample
    """[B]: the loss times the weighting, without correction."""
    action: Tensor | None = None
    """[B, ...]: what the draw of the last micro-batch handed out."""
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
        return replace(self, u=u, plain=plain, weighted=weighted, action=action)


def valid_losses(losses: PerExample, feedback: Feedback, learner: object) -> Tensor:
    """Which losses [B] a learner may count; on the CPU, one that is not finite is an error.

    On an accelerator looking would stop the device, so they are left out and counted instead.
    """
    finite, u = losses.isfinite(), feedback.u
    if losses.device.type == "cpu" and not bool(finite.all()):
        where = ", ".join(f"{time:.4f}" for time in u[~finite][:5].tolist())
        raise NonFiniteLoss(
            f"{int((~finite).sum())} of {len(losses)} losses given to {learner!r} are NaN or infinite, at "
            f"u = {where}. Nothing was learned from this batch: look at the learning rate or the data."
        )
    return finite if feedback.counts is None else finite & feedback.counts

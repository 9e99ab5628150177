"""What a sampler learns from: the times and losses of one update, and what its probe measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter, NonFiniteLoss
from stepwell.core.probe import Times
from stepwell.core.ranks import WorkerGroup
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick


@dataclass(frozen=True, slots=True)
class GradientSignal:
    """Gradients of one stratum of time; equal on every rank."""

    stratum: int
    halves: Tensor
    """[2, d]: sketches of the mean gradient of two halves of different images.

    The first is of the trained loss, the second of the target. Inner products are those of the gradients, in
    Adam's metric if the spec says so.
    """
    images: int
    """Examples in each half."""


@dataclass(frozen=True, slots=True)
class DecreaseSignal:
    """How much one update lowered the target's loss; equal on every rank."""

    row: Tensor
    """[G]: the decrease of one example, at the times of the spec's grid."""
    rewards: Tensor
    """[B, S]: the decrease of all ranks' examples of the last micro-batch, at the spec's subset.

    With a `late` spec [B, 0]: ask `rewards_at`."""
    rewards_at: Callable[[Times], Tensor] | None = None
    """Measures the rewards [B, n] at n times; on all ranks, and before the next update."""

    def mapped(self, forward: Callable[[Times], Times]) -> DecreaseSignal:
        """The same signal for a sampler whose times `forward` maps to the process's."""
        inner = self.rewards_at
        return self if inner is None else replace(self, rewards_at=lambda times: inner(forward(times)))


Signal: TypeAlias = GradientSignal | DecreaseSignal


@dataclass(frozen=True, slots=True)
class Feedback:
    """Times, losses and measurements of one update."""

    tick: Tick
    u: PerExample
    plain: PerExample
    """[B]: the loss on the network's own target, without weighting or correction; NaN if unobserved."""
    weighted: PerExample
    """[B]: the loss times the weighting, without correction."""
    action: Tensor | None = None
    """[B, ...]: `Draw.action` of the last micro-batch; rows of NaN: another sampler drew (`mix`)."""
    signal: Signal | None = None
    counts: Tensor | None = None
    """[B] bool: which examples lie in the sampler's range of time; None: all."""

    def __post_init__(self) -> None:
        if not self.u.shape == self.plain.shape == self.weighted.shape or self.u.dim() != 1:
            raise InvalidParameter(
                "feedback needs one value per example: u, plain and weighted have shapes "
                f"{tuple(self.u.shape)}, {tuple(self.plain.shape)} and {tuple(self.weighted.shape)}. "
                "Pass losses before they are averaged (reduction='none', then the mean over each example)."
            )

    def gathered(self, group: WorkerGroup) -> Feedback:
        """The feedback of all ranks' examples, in rank order; all batches must have the same size."""
        if group.world == 1:
            return self
        columns = group.gather(torch.stack([self.u, self.plain.to(self.u), self.weighted.to(self.u)], dim=1))
        u, plain, weighted = columns.unbind(dim=1)
        action = None if self.action is None else group.gather(self.action)
        return replace(self, u=u, plain=plain, weighted=weighted, action=action)


def valid_losses(losses: PerExample, feedback: Feedback, learner: object) -> Tensor:
    """Which losses [B] a learner may use; on the CPU, one that is not finite is an error.

    On an accelerator the check would wait for the device, so such losses are left out and counted instead.
    """
    require_finite(losses, feedback, learner)
    finite = losses.isfinite()
    return finite if feedback.counts is None else finite & feedback.counts


def usable_losses(losses: PerExample, feedback: Feedback, learner: object) -> Tensor:
    """Which losses [B] are finite and 0 or more; on the CPU any other is an error, as in `valid_losses`."""
    require_finite(losses, feedback, learner)
    if losses.device.type == "cpu" and bool((losses < 0).any()):
        negative = losses < 0
        where = ", ".join(f"{time:.4f}" for time in feedback.u[negative][:5].tolist())
        raise InvalidParameter(
            f"{int(negative.sum())} of {len(losses)} losses given to {learner!r} are negative, at u = {where}"
            ", and it divides by their mean. Nothing was learned from this batch: give pacer.observe the "
            "squared errors alone, without terms that may be negative."
        )
    return losses.isfinite() & (losses >= 0)


def require_finite(losses: PerExample, feedback: Feedback, learner: object) -> None:
    """Refuse losses [B] that are not finite, on the CPU."""
    # Python's floats are several times as quick here as operations on a small tensor.
    if losses.device.type != "cpu" or all(map(math.isfinite, losses.tolist())):
        return
    infinite = ~losses.isfinite()
    where = ", ".join(f"{time:.4f}" for time in feedback.u[infinite][:5].tolist())
    raise NonFiniteLoss(
        f"{int(infinite.sum())} of {len(losses)} losses given to {learner!r} are NaN or infinite, at "
        f"u = {where}. Nothing was learned from this batch: check the learning rate and the data."
    )

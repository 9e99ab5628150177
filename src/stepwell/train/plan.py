"""How long to train, what to do once in a while, and where training is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from stepwell.core.errors import StepwellError
from stepwell.diagnostics import Diagnostics
from stepwell.runs.clock import Clock


class TrainingStopped(StepwellError):
    """Training cannot go on; what was saved is still good."""


@dataclass(frozen=True)
class Plan:
    """How long to train, and what to do once in a while (0: never)."""

    steps: int
    batch_images: int
    """Images per step, over all ranks and micro-batches."""
    data_images: int
    """Images in the training data: with others, the order would be another."""
    example_shape: tuple[int, int, int]
    """Channels, height, width: who starts from a checkpoint asks for it."""
    seconds: float | None = None
    record_every: int = 50
    evaluate_every: int = 0
    checkpoint_every: int = 0
    keep: int = 2
    inexact: bool = False


@dataclass(frozen=True)
class Hooks:
    """What the loop calls and does not know."""

    evaluate: Callable[[torch.nn.Module], dict[str, Any]]
    progress: Callable[[int, dict[str, Any]], None]
    track: Callable[[dict[str, float], int], None]
    say: Callable[[str], None]


@dataclass
class Position:
    """Where training is, and what it has been warned of."""

    step: int
    clock: Clock
    diagnostics: Diagnostics = field(default_factory=Diagnostics)


def due(step: int, every: int) -> bool:
    """Whether a duty falls on this step."""
    return every > 0 and step % every == 0


def finished(at: Position, plan: Plan) -> bool:
    """Whether the plan's steps or seconds are used up."""
    return at.step >= plan.steps or (plan.seconds is not None and at.clock.seconds >= plan.seconds)

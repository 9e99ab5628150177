"""Policy updates from given rewards."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

import stepwell
from stepwell.core.feedback import DecreaseSignal, Feedback, GradientSignal
from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec
from stepwell.core.sampler import Metrics, TimestepSampler
from stepwell.core.tick import Tick

LINEAR = stepwell.process("linear")
SEED = 5
Reward = Callable[[Tensor, Tensor], Tensor]
"""(x0 [B, ...], u [B]) -> rewards [B]."""


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def decrease(sampler: TimestepSampler) -> DecreaseSpec:
    spec = sampler.probe
    assert isinstance(spec, DecreaseSpec)
    return spec


def due(sampler: TimestepSampler, number: int = 0) -> Tick:
    """The tick of a step at which something is measured, counted from 0."""
    spec = sampler.probe
    assert spec is not None
    return Tick(SEED, step=_due_steps(spec)[number])


@cache
def _due_steps(spec: ProbeSpec) -> list[int]:
    return [step for step in range(10_000) if spec.due(step)]


def told(tick: Tick, action: Tensor | None, signal: Any) -> Feedback:
    nothing = torch.zeros(4)
    return Feedback(tick, nothing, nothing, nothing, action, signal)


def update(
    sampler: TimestepSampler, number: int, x0: Tensor, reward: Reward, row: Tensor | None = None
) -> Metrics:
    """One policy update from what each draw of a batch earns."""
    spec = decrease(sampler)
    tick = due(sampler, number)
    drawn = sampler.draw(x0, tick)
    row = noise(len(spec.grid), seed=number) if row is None else row
    each = reward(x0, drawn.u)[:, None]
    rewards = each.expand(-1, 0 if spec.late else len(spec.subset))
    signal = DecreaseSignal(row, rewards, lambda times: each.expand(-1, len(times)))
    return sampler.learn(told(tick, drawn.action, signal))


def constant(x0: Tensor, u: Tensor) -> Tensor:
    return torch.ones_like(u)


def queue(sampler: TimestepSampler) -> Tensor:
    found: Tensor = sampler.state_dict()["credit"]["queue"]
    return found


def in_band(x0: Tensor, u: Tensor) -> Tensor:
    return ((u > 0.2) & (u < 0.4)).float() + 0.3 * noise(len(u), seed=int(u[0] * 1e6))


def gradients(
    sampler: TimestepSampler, visits: int, gain: Callable[[float, int], float], x0: Tensor, first: int = 0
) -> Metrics:
    """Rounds over all strata whose gradients, each in its own direction, gain what `gain(u, visit)` says."""
    spec = sampler.probe
    assert isinstance(spec, GradientSpec)
    metrics: Metrics = {}
    for turn in range(first * spec.strata, (first + visits) * spec.strata):
        tick = due(sampler, turn)
        drawn, stratum = sampler.draw(x0, tick), spec.stratum(tick.step)
        middle = (spec.borders[stratum] + spec.borders[stratum + 1]) / 2
        direction = torch.eye(spec.strata)[stratum]
        halves = torch.stack([gain(middle, turn // spec.strata) * direction, direction])
        metrics = sampler.learn(told(tick, drawn.action, GradientSignal(stratum, halves, 16)))
    return metrics


def in_two_bands(u: float, visit: int) -> float:
    return 1.0 if 0.2 < u < 0.4 else 0.0

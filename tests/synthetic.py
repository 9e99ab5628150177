"""Training without a model: losses and signals that depend on time alone, and quadrature over unit time."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from stepwell.core.feedback import DecreaseSignal, Feedback, GradientSignal, Signal
from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec, Times
from stepwell.core.sampler import Draw, TimestepSampler
from stepwell.core.tick import Tick

START = 1000
"""A step that lies past every warm-up of these tests."""


def profile(u: Tensor) -> Tensor:
    """A loss over time that no sampler has the shape of at first."""
    return 0.1 + torch.exp(-3 * u) + 2 * torch.exp(-(((u - 0.6) / 0.15) ** 2))


def feedback(
    u: Tensor, losses: Tensor | None = None, tick: Tick | None = None, signal: Signal | None = None
) -> Feedback:
    """What a training step at times u would tell a sampler."""
    losses = profile(u) if losses is None else losses
    return Feedback(tick or Tick(), u, plain=losses, weighted=losses, signal=signal)


def planted(mean: Tensor, spread: Tensor, stratum: int, images: int = 16) -> GradientSignal:
    """A stratum's two halves whose mean gradient and distance are known, in directions of their own."""
    rest = torch.zeros(6, device=mean.device)
    halves = [torch.cat([mean[None], side * spread[None], rest]) for side in (1, -1)]
    return GradientSignal(stratum, torch.stack(halves), images)


def measured(spec: ProbeSpec | None, tick: Tick, batch: int, device: torch.device) -> Signal | None:
    """What a probe would say at this step, if its spec has something measured then."""
    if spec is None or not spec.due(tick.step):
        return None
    luck = 0.5 + tick.uniform("signal", 1)
    if isinstance(spec, GradientSpec):
        stratum = spec.stratum(tick.step)
        middle = torch.tensor(sum(spec.borders[stratum : stratum + 2]) / 2)
        # Where gradients are noisy, little is gained: no two of the samplers may end up alike.
        mean, spread = luck[0] * profile(middle), luck[0] / 2 * profile(1 - middle)
        return planted(mean.to(device), spread.to(device), stratum, spec.images)
    assert isinstance(spec, DecreaseSpec)
    row, each = luck * profile(torch.tensor(spec.grid)), 0.5 + tick.uniform("fall", batch)

    def fall(times: Times) -> Tensor:
        return (each[:, None] * profile(torch.tensor(times))).to(device)

    return DecreaseSignal(row.to(device), fall(spec.subset), fall)


def lesson(spec: ProbeSpec | None, drawn: Draw, losses: Tensor, tick: Tick) -> Feedback:
    """What an update on these draws would tell a sampler: losses, its action, and a signal if one is due."""
    signal = measured(spec, tick, len(drawn.u), drawn.u.device)
    return Feedback(tick, drawn.u, losses, losses, drawn.action, signal)


def steps_of(sampler: TimestepSampler, updates: int) -> range:
    """Past START, one after the other, or those at which something is measured: then in every stratum."""
    spec = sampler.probe
    every = 1 if spec is None else spec.every_steps
    if isinstance(spec, GradientSpec):
        updates = max(updates, spec.strata)
    first = next(step for step in count(START) if spec is None or spec.due(step))
    return range(first, first + updates * every, every)


def teach(sampler: TimestepSampler, updates: int = 12, batch: int = 4096) -> TimestepSampler:
    """The sampler after a few steps of training on its own draws."""
    # Signals do not need many examples, and a policy runs a network on each.
    batch = batch if sampler.probe is None else min(batch, 256)
    x0 = torch.zeros(batch, 1, 1)
    for step in steps_of(sampler, updates):
        tick = Tick(seed=3, step=step)
        drawn = sampler.draw(x0, tick)
        spread = 0.5 + tick.uniform("loss", batch)
        sampler.learn(lesson(sampler.probe, drawn, profile(drawn.u) * spread, tick))
    return sampler


def cell_borders(*more: Tensor, even: int = 64_000, logistic: int = 8000) -> Tensor:
    """Borders of small cells: even in u, even in logit(u) for densities that crowd at an end, and `more`."""
    line = torch.arange(even + 1, dtype=torch.float64) / even
    ends = torch.sigmoid(torch.linspace(-36, 36, logistic + 1, dtype=torch.float64))
    return torch.cat([line, ends, *more]).unique()


def cell_masses(sampler: TimestepSampler, borders: Tensor, x0: Tensor | None = None) -> Tensor:
    """The midpoint rule in every cell."""
    return sampler.density((borders[1:] + borders[:-1]) / 2, x0) * borders.diff()

"""Training without a model: losses that depend on time alone, and quadrature over unit time."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core.feedback import Feedback, Signal
from stepwell.core.sampler import TimestepSampler
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


def teach(sampler: TimestepSampler, batches: int = 12, batch: int = 4096) -> TimestepSampler:
    """The sampler after a few steps of training on its own draws."""
    x0 = torch.zeros(batch, 1)
    for step in range(START, START + batches):
        tick = Tick(seed=3, step=step)
        drawn = sampler.draw(x0, tick)
        spread = 0.5 + tick.uniform("loss", batch)
        sampler.learn(feedback(drawn.u, profile(drawn.u) * spread, tick))
    return sampler


def cell_borders(*more: Tensor, even: int = 64_000, logistic: int = 8000) -> Tensor:
    """Borders of small cells: even in u, even in logit(u) for densities that crowd at an end, and `more`."""
    line = torch.arange(even + 1, dtype=torch.float64) / even
    ends = torch.sigmoid(torch.linspace(-36, 36, logistic + 1, dtype=torch.float64))
    return torch.cat([line, ends, *more]).unique()


def cell_masses(sampler: TimestepSampler, borders: Tensor, x0: Tensor | None = None) -> Tensor:
    """The midpoint rule in every cell."""
    return sampler.density((borders[1:] + borders[:-1]) / 2, x0) * borders.diff()

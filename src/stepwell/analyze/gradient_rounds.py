"""Repeated measurements of the gradient in every stratum of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter, NonFiniteLoss
from stepwell.core.estimates import MIN_ROUNDS
from stepwell.core.probe import GradientSpec
from stepwell.core.ranks import Alone
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick, stream_key
from stepwell.data.batches import Batches
from stepwell.data.source import ExampleSource
from stepwell.probes.context import ProbeContext, ProbeSetup, adam_scale
from stepwell.probes.gradients import Gradients
from stepwell.samplers.gradients import strata_spec
from stepwell.train.step import Training
from stepwell.weightings import Weighting

Examples = Callable[[Tick], tuple[Tensor, Any]]
"""The examples [2 n, ...] of a tick, and their condition."""
Progress = Callable[[int, int], None]
"""(measurements done, of how many)."""


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Effort:
    """How much to measure: every round takes 2 x images gradients in each stratum."""

    strata: int = 20
    rounds: int = 5
    images: int = 16

    def __post_init__(self) -> None:
        require.count("strata", self.strata, least=2, most=require.MOST_STRATA)
        require.count("rounds", self.rounds, least=MIN_ROUNDS, most=require.MOST_STRATA)
        require.count("images", self.images, most=require.MOST_BINS)


def probe_setup(training: Training, weighting: Weighting | None = None) -> ProbeSetup:
    """A training's losses for a probe, with its own weighting unless another is given."""
    objective, network = training.objective, training.network

    def loss_at(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        return objective(network, x0, noise, u, condition).plain

    weighting = weighting or objective.weighting
    return ProbeSetup(objective.process, weighting, loss_at, training.optimizer, network)


@dataclass(frozen=True)
class GradientRounds:
    """Repeated gradients of some losses in every stratum of time."""

    setup: ProbeSetup
    examples: Examples
    effort: Effort = Effort()
    progress: Progress = no_progress
    seed: int = 0
    """Which times, noises and images: measurements that are averaged need different ones."""

    def spec(self, metric: str) -> GradientSpec:
        """The strata and the metric, plain or adam."""
        return strata_spec(self.setup.process, self.effort.strata, 1, self.effort.images, None, metric)

    def halves(self, spec: GradientSpec) -> Tensor:
        """[R, K, 2, d]: sketches of the mean gradients of two halves, in every stratum of every round."""
        probe, sketches = Gradients(), list[Tensor]()
        total = self.effort.rounds * spec.strata
        for step in range(total):
            tick = Tick(self.seed, step)
            x0, condition = self.examples(tick)
            probe.add_batch(x0, condition, spec, 1)
            signal = probe.after(ProbeContext(tick, x0, condition, Alone(), self.setup), spec)
            assert signal is not None, "every call has as many examples as the probe needs"
            if not bool(signal.halves.isfinite().all()):
                low, high = spec.borders[signal.stratum : signal.stratum + 2]
                raise NonFiniteLoss(f"the gradient is not finite between {low:g} and {high:g} of unit time.")
            sketches.append(signal.halves.cpu())
            self.progress(step + 1, total)
        return torch.stack(sketches).double().reshape(self.effort.rounds, spec.strata, 2, -1)

    def variances(self, halves: Tensor) -> Tensor:
        """[K]: the trace of the covariance of one example's gradient, from halves [R, K, 2, d]."""
        one, other = halves.unbind(2)
        # Half the squared distance of two independent means of n is the variance of one of them.
        return (one - other).square().sum(-1).mean(0) * (self.effort.images / 2)

    def metric(self, spec: GradientSpec) -> str:
        """adam: gradients are scaled by Adam's preconditioner, which exists after an update; else plain."""
        optimizer = self.setup.optimizer
        scale = adam_scale(optimizer, optimizer.param_groups[0]["params"][0])
        return "adam" if spec.preconditioned and scale is not None else "plain"


def gradient_rounds(
    training: Training,
    source: ExampleSource,
    effort: Effort,
    weighting: Weighting | None = None,
    progress: Progress = no_progress,
    seed: int = 0,
) -> GradientRounds:
    """Gradients of a training in its present state, on images of a source."""
    if len(source) < 2 * effort.images:
        raise InvalidParameter(
            f"{source.name} has {len(source)} images, and two halves of {effort.images} different ones are "
            f"needed: give at most --images {len(source) // 2}, or more data."
        )
    training.network.train()
    batches = Batches(source, 2 * effort.images, stream_key(training.seed, "gain"))
    setup = probe_setup(training, weighting)
    return GradientRounds(setup, lambda tick: training.encode(batches.at(tick)), effort, progress, seed)

"""Estimates from a few repeated rounds, with an interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepwell.catalogue import build
from stepwell.core import require
from stepwell.core.errors import InvalidParameter, NonFiniteLoss
from stepwell.core.probe import GradientSpec
from stepwell.core.ranks import Alone
from stepwell.core.student import t_quantile
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick, stream_key
from stepwell.data.batches import Batches
from stepwell.data.source import ExampleSource
from stepwell.probes.context import ProbeContext, ProbeSetup, adam_scale
from stepwell.probes.gradients import Gradients
from stepwell.train.step import Training
from stepwell.weightings import Weighting

FEWEST = 3
"""Rounds below which an interval says nothing."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def within(self, least: float, most: float) -> Estimate:
        """The same, kept in the range where it has a meaning."""
        return Estimate(*(min(max(number, least), most) for number in (self.value, self.low, self.high)))

    def mapped(self, falling: Callable[[float], float]) -> Estimate:
        """The estimate of a falling function of it."""
        return Estimate(falling(self.value), falling(self.high), falling(self.low))


def jackknife(statistic: Callable[[Tensor], Tensor], rounds: int) -> list[Estimate]:
    """Estimates of a statistic [n] of chosen rounds, less its bias of order 1 / rounds (Tukey 1958).

    `statistic` gets the indices of the rounds that it may use; pseudo-values of all rounds make a t interval.
    """
    if rounds < FEWEST:
        raise InvalidParameter(f"{rounds} rounds are too few for an interval: take at least {FEWEST}.")
    every = torch.arange(rounds)
    whole = statistic(every).double()
    without = torch.stack([statistic(every[every != left_out]).double() for left_out in range(rounds)])
    pseudo = rounds * whole - (rounds - 1) * without
    middle = pseudo.mean(0)
    margin = t_quantile(rounds - 1) * pseudo.std(0) / rounds**0.5
    return [
        Estimate(value, value - around, value + around)
        for value, around in zip(middle.tolist(), margin.tolist(), strict=True)
    ]


Examples = Callable[[Tick], tuple[Tensor, Any]]
"""Fresh examples [2 n, ...] with their condition, a function of the tick."""
Progress = Callable[[int, int], None]
"""(measurements done, of how many)."""


def unseen(done: int, total: int) -> None:
    """Progress that nobody watches."""
    return


@dataclass(frozen=True)
class Effort:
    """How much to measure: every round takes 2 x images gradients in each stratum."""

    strata: int = 20
    rounds: int = 5
    images: int = 16

    def __post_init__(self) -> None:
        require.count("strata", self.strata, least=2)
        require.count("rounds", self.rounds, least=FEWEST)
        require.count("images", self.images)


def watch(
    training: Training, source: ExampleSource, effort: Effort, weighting: Weighting | None = None
) -> tuple[ProbeSetup, Examples]:
    """A training as it stands, for probes, with images it was not necessarily shown."""
    if len(source) < 2 * effort.images:
        raise InvalidParameter(
            f"{source.name} has {len(source)} images, and two halves of {effort.images} different ones are "
            f"needed: give at most --images {len(source) // 2}, or more data."
        )
    network = training.network
    network.train()
    batches = Batches(source, 2 * effort.images, stream_key(training.seed, "gain"))

    def loss_at(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        return training.objective(network, x0, noise, u, condition).plain

    process, own = training.objective.process, training.objective.weighting
    setup = ProbeSetup(process, weighting or own, loss_at, training.optimizer, network, build.weighting)
    return setup, lambda tick: training.encode(batches.at(tick))


def halves_of(
    setup: ProbeSetup, examples: Examples, spec: GradientSpec, rounds: int, progress: Progress = unseen
) -> Tensor:
    """[R, K, 2, d]: sketches of the mean gradients of two halves, in every stratum of every round."""
    probe, found = Gradients(), list[Tensor]()
    for step in range(rounds * spec.strata):
        tick = Tick(step=step)
        x0, condition = examples(tick)
        probe.add_batch(x0, condition, spec, 1)
        signal = probe.after(ProbeContext(tick, x0, condition, Alone(), setup), spec)
        assert signal is not None, "every call brings as many examples as the probe needs"
        if not bool(signal.halves.isfinite().all()):
            low, high = spec.borders[signal.stratum : signal.stratum + 2]
            raise NonFiniteLoss(f"the gradient is not finite between {low:g} and {high:g} of unit time.")
        found.append(signal.halves.cpu())
        progress(step + 1, rounds * spec.strata)
    return torch.stack(found).double().reshape(rounds, spec.strata, 2, -1)


def variances(halves: Tensor, images: int) -> Tensor:
    """[K]: of one example's gradient, its trace, from halves [R, K, 2, d]."""
    one, other = halves.unbind(2)
    # Half the squared distance of two independent means of n is the variance of one of them.
    return (one - other).square().sum(-1).mean(0) * (images / 2)


def preconditioned(setup: ProbeSetup) -> bool:
    """Whether Adam's metric is there: before the first update it is not, and gradients stay plain."""
    return adam_scale(setup.optimizer, setup.optimizer.param_groups[0]["params"][0]) is not None

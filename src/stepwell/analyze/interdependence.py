"""Matrices of estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.analyze.estimates import (
    FEWEST,
    Effort,
    Examples,
    Progress,
    halves_of,
    jackknife,
    preconditioned,
    unseen,
)
from stepwell.core import require
from stepwell.core.density import Density, edges
from stepwell.core.errors import InvalidParameter, NonFiniteLoss
from stepwell.core.tick import Tick, stream_key
from stepwell.pacer import Pacer
from stepwell.probes.context import ProbeSetup
from stepwell.probes.examples import between, forked
from stepwell.samplers.gradients import strata_spec
from stepwell.samplers.one_density import Static
from stepwell.train.ema import Ema
from stepwell.train.learning_rate import Warmup
from stepwell.train.step import Training, train_step

Matrix = tuple[tuple[float, ...], ...]


def estimated(statistic: Callable[[Tensor], Tensor], rounds: int) -> tuple[Tensor, Tensor]:
    """Values and half intervals of a matrix-valued statistic."""
    shape = statistic(torch.arange(rounds)).shape
    found = jackknife(lambda chosen: statistic(chosen).flatten(), rounds)
    values = torch.tensor([(each.value, each.high - each.value) for each in found], dtype=torch.float64)
    return values[:, 0].view(shape), values[:, 1].view(shape)


def rows(matrix: Tensor) -> Matrix:
    """For JSON and frozen results."""
    return tuple(tuple(row) for row in matrix.tolist())


Losses = Callable[[nn.Module], Sequence[float]]
"""The plain loss of a network in eval mode in equal bands of unit time, with the same noise every time."""
Range = tuple[float, float]


@dataclass(frozen=True)
class Continuation:
    """How to go on: on each range alone and on all of time, so many steps, several times."""

    ranges: tuple[Range, ...]
    steps: int = 50
    repeats: int = 3

    def __post_init__(self) -> None:
        require.count("steps", self.steps)
        require.count("repeats", self.repeats, least=FEWEST)
        for low, high in self.ranges:
            if not 0 <= low < high <= 1:
                raise InvalidParameter(
                    f"{low:g},{high:g} is no range of unit time: write LOW,HIGH with 0 <= LOW < HIGH <= 1."
                )


@dataclass(frozen=True)
class Transfer:
    """Losses after training on one range, less those before: rows are ranges, columns bands."""

    ranges: tuple[Range, ...]
    """[M]: what was trained on; the last is all of time, for comparison."""
    borders: tuple[float, ...]
    """[B + 1]: of the bands, in unit time."""
    before: tuple[float, ...]
    """[B]: the loss in each band."""
    change: Matrix
    """[M][B]: the mean over repeats of after - before."""
    margin: Matrix
    """[M][B]: half of its 95 % interval; repeats differ in images, times and noise."""
    steps: int


class Part(Density):
    """A density between two borders, as it is there."""

    def __init__(self, whole: Density, low: float, high: float) -> None:
        self.whole, self.low, self.high = whole, low, high
        ends = whole.cdf(torch.tensor([low, high], dtype=torch.float64)).tolist()
        self._below, self._mass = ends[0], ends[1] - ends[0]

    def quantile(self, v: Tensor) -> Tensor:
        return between(self.whole, v, self.low, self.high)

    def pdf(self, u: Tensor) -> Tensor:
        here = (u >= self.low) & (u < self.high)
        return torch.where(here, self.whole.pdf(u) / self._mass, 0.0)

    def cdf(self, u: Tensor) -> Tensor:
        share: Tensor = (self.whole.cdf(u) - self._below) / self._mass
        return share.clamp(0, 1)


def transfer(
    training: Training, steps: int, losses: Losses, plan: Continuation, progress: Progress = unseen
) -> Transfer:
    """Go on from `steps`, with each range in turn; the training is as it was afterwards."""
    ranges = (*plan.ranges, (0.0, 1.0))
    network, total = training.network, len(ranges) * plan.repeats
    with _copied(training) as reset:
        before, changes = _evaluated(network, losses), list[Tensor]()
        for place in range(total):
            reset()
            on, repeat = ranges[place // plan.repeats], place % plan.repeats
            _go_on(training, on, range(steps, steps + plan.steps), repeat)
            after = _evaluated(network, losses)
            if not bool(after.isfinite().all()):
                raise NonFiniteLoss(
                    f"training on {on[0]:g} to {on[1]:g} of unit time for {plan.steps} steps made the loss "
                    "infinite somewhere: give fewer --steps."
                )
            changes.append(after - before)
            progress(place + 1, total)
    by_repeat = torch.stack(changes).view(len(ranges), plan.repeats, -1).transpose(0, 1)
    change, margin = estimated(lambda rounds: by_repeat[rounds].mean(0), plan.repeats)
    borders = tuple(edges(len(before)).tolist())
    return Transfer(ranges, borders, tuple(before.tolist()), rows(change), rows(margin), plan.steps)


@contextmanager
def _copied(training: Training) -> Iterator[Callable[[], None]]:
    """A way back to the training's weights and optimizer, taken in the end whatever happens."""
    network, optimizer = training.network, training.optimizer
    weights, state = deepcopy(network.state_dict()), deepcopy(optimizer.state_dict())
    modes = [(module, module.training) for module in network.modules()]

    def reset() -> None:
        network.load_state_dict(weights)
        # The optimizer keeps the tensors it is given, and the next step would change them.
        optimizer.load_state_dict(deepcopy(state))

    try:
        with forked(Tick(training.seed), "interdependence", training.accelerator.device):
            yield reset
    finally:
        reset()
        for module, mode in modes:
            module.training = mode


def _go_on(training: Training, on: Range, steps: range, repeat: int) -> None:
    """Train on one range; repeats have images, times and noise of their own."""
    process, weighting = training.objective.process, training.objective.weighting
    network = training.network
    network.train()
    other = replace(
        training,
        pacer=Pacer(Static(Part(process.reference, *on), "part"), process, weighting),
        ema=Ema(network.parameters(), 0.0),
        warm_up=Warmup(training.warm_up.at(steps.start)),
        seed=stream_key(training.seed, "interdependence", repeat),
    )
    for step in steps:
        train_step(other, step + repeat * len(steps))


def _evaluated(network: nn.Module, losses: Losses) -> Tensor:
    network.eval()
    return torch.tensor(list(losses(network)), dtype=torch.float64)


@dataclass(frozen=True)
class Alignments:
    """Inner products of the strata's mean gradients: how fast training on i lowers the loss in j."""

    borders: tuple[float, ...]
    """[K + 1]: of the strata, in unit time."""
    metric: str
    """adam: in the metric of Adam's preconditioner; plain."""
    product: Matrix
    """[K][K]: without the part that noise would add to the diagonal."""
    margin: Matrix
    """[K][K]: half of the 95 % interval."""
    cosine: Matrix
    """[K][K]: over both norms; NaN where a stratum's mean gradient cannot be told from noise."""


@dataclass(frozen=True)
class Interdependence:
    """Both looks at one training."""

    transfer: Transfer
    alignments: Alignments

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def alignments_of(
    setup: ProbeSetup, examples: Examples, effort: Effort, metric: str = "adam", progress: Progress = unseen
) -> Alignments:
    """The alignments of any losses with any optimizer, of the objective that is trained."""
    spec = strata_spec(setup.process, effort.strata, 1, effort.images, None, metric)
    halves = halves_of(setup, examples, spec, effort.rounds, progress)
    product, margin = estimated(lambda rounds: _products(halves[rounds]), effort.rounds)
    squares = product.diagonal()
    # A norm by luck would make a cosine of +-1: where its interval reaches 0, there is none.
    norms = torch.where(squares > margin.diagonal(), squares, torch.nan).sqrt()
    cosine = (product / (norms[:, None] * norms)).clamp(-1, 1)
    scaled = spec.preconditioned and preconditioned(setup)
    return Alignments(spec.borders, "adam" if scaled else "plain", rows(product), rows(margin), rows(cosine))


def _products(halves: Tensor) -> Tensor:
    """[K, K]: inner products of mean gradients, of different examples only, from halves [R, K, 2, d]."""
    each = halves.transpose(1, 2).flatten(0, 1)
    count, total = len(each), each.sum(0)
    products = total @ total.T / count**2
    # On the diagonal, every half has met itself: its noise would be counted as a gradient.
    pairs = total.square().sum(-1) - each.square().sum((0, 2))
    return products.diagonal_scatter(pairs / (count * (count - 1)))

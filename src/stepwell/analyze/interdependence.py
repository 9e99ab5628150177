"""What training on one part of time does to the others (Kim et al. 2025, Fig. 4).

Two measurements: losses everywhere after a copy was trained on one range of time only (transfer), and, to
first order, the inner products of the gradients of all strata (alignments).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from stepwell.analyze.gradient_rounds import GradientRounds, Progress, no_progress
from stepwell.core import require
from stepwell.core.density import Density, edges
from stepwell.core.errors import InvalidParameter, NonFiniteLoss
from stepwell.core.estimates import MIN_ROUNDS, jackknife
from stepwell.core.tick import Tick, stream_key
from stepwell.core.weighting import frozen
from stepwell.pacer import Pacer
from stepwell.probes.examples import between, forked
from stepwell.samplers.one_density import Static
from stepwell.train.ema import Ema
from stepwell.train.learning_rate import LearningRate
from stepwell.train.step import Training, train_step

Matrix = tuple[tuple[float, ...], ...]


Losses = Callable[[nn.Module], Sequence[float]]
"""The plain loss of a network in equal bands of unit time, with the same noise every time."""
Range = tuple[float, float]


@dataclass(frozen=True)
class Continuation:
    """How to train on: for so many steps on each range alone and on all of time, several times."""

    ranges: tuple[Range, ...]
    steps: int = 50
    repeats: int = 3

    def __post_init__(self) -> None:
        require.count("steps", self.steps)
        require.count("repeats", self.repeats, least=MIN_ROUNDS, most=require.MOST_STRATA)
        for low, high in self.ranges:
            if not 0 <= low < high <= 1:
                raise InvalidParameter(
                    f"{low:g},{high:g} is not a range of unit time: write LOW,HIGH with 0 <= LOW < HIGH <= 1."
                )


@dataclass(frozen=True)
class Transfer:
    """Losses after minus before training on one range: rows are ranges, columns bands."""

    ranges: tuple[Range, ...]
    """[M]: what was trained on; the last is all of time, as a control."""
    borders: tuple[float, ...]
    """[B + 1]: borders of the bands, in unit time."""
    before: tuple[float, ...]
    """[B]: the loss in each band."""
    change: Matrix
    """[M][B]: after - before, averaged over repeats."""
    margin: Matrix
    """[M][B]: half the 95 % interval; repeats differ in images, times and noise."""
    steps: int


class Truncated(Density):
    """A density restricted to [low, high)."""

    def __init__(self, density: Density, low: float, high: float) -> None:
        self.density, self.low, self.high = density, low, high
        ends = density.cdf(torch.tensor([low, high], dtype=torch.float64)).tolist()
        self._below, self._mass = ends[0], ends[1] - ends[0]

    def quantile(self, v: Tensor) -> Tensor:
        return between(self.density, v, self.low, self.high)

    def pdf(self, u: Tensor) -> Tensor:
        inside = (u >= self.low) & (u < self.high)
        return torch.where(inside, self.density.pdf(u) / self._mass, 0.0)

    def cdf(self, u: Tensor) -> Tensor:
        share: Tensor = (self.density.cdf(u) - self._below) / self._mass
        return share.clamp(0, 1)


def transfer(
    training: Training, steps: int, losses: Losses, plan: Continuation, progress: Progress = no_progress
) -> Transfer:
    """Train on from `steps` on each range in turn; the training is restored afterwards."""
    ranges = (*plan.ranges, (0.0, 1.0))
    network, total = training.network, len(ranges) * plan.repeats
    with _restored(training) as reset:
        before, changes = _evaluated(network, losses), list[Tensor]()
        for place in range(total):
            reset()
            on, repeat = ranges[place // plan.repeats], place % plan.repeats
            _train_on(training, on, range(steps, steps + plan.steps), repeat)
            after = _evaluated(network, losses)
            if not bool(after.isfinite().all()):
                raise NonFiniteLoss(
                    f"training on {on[0]:g} to {on[1]:g} of unit time for {plan.steps} steps made the loss "
                    "infinite somewhere: give fewer --steps."
                )
            changes.append(after - before)
            progress(place + 1, total)
    by_repeat = torch.stack(changes).view(len(ranges), plan.repeats, -1).transpose(0, 1)
    change, margin = _matrix_estimates(lambda rounds: by_repeat[rounds].mean(0), plan.repeats)
    borders = tuple(edges(len(before)).tolist())
    return Transfer(ranges, borders, tuple(before.tolist()), _rows(change), _rows(margin), plan.steps)


@contextmanager
def _restored(training: Training) -> Iterator[Callable[[], None]]:
    """A function that resets weights and optimizer; they are reset at the end in any case."""
    network, optimizer = training.network, training.optimizer
    weights, state = deepcopy(network.state_dict()), deepcopy(optimizer.state_dict())
    modes = [(module, module.training) for module in network.modules()]

    def reset() -> None:
        network.load_state_dict(weights)
        # The optimizer keeps and changes the tensors that it loads.
        optimizer.load_state_dict(deepcopy(state))

    try:
        with forked(Tick(training.seed), "interdependence", training.accelerator.device):
            yield reset
    finally:
        reset()
        for module, mode in modes:
            module.training = mode


def _train_on(training: Training, on: Range, steps: range, repeat: int) -> None:
    """Train on one range; every repeat has its own images, times and noise."""
    process, weighting = training.objective.process, frozen(training.objective.weighting)
    network = training.network
    network.train()
    other = replace(
        training,
        pacer=Pacer(Static(Truncated(process.reference, *on), "truncated"), process, weighting),
        ema=Ema(network.parameters(), 0.0),
        learning_rate=LearningRate(training.learning_rate.at(steps.start)),
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
    """[K + 1]: borders of the strata, in unit time."""
    metric: str
    """adam: gradients were scaled by Adam's preconditioner; or plain."""
    product: Matrix
    """[K][K]: without the noise's part of the diagonal."""
    margin: Matrix
    """[K][K]: half the 95 % interval."""
    cosine: Matrix
    """[K][K]: NaN where a stratum's mean gradient is within noise of 0."""


@dataclass(frozen=True)
class Interdependence:
    """Both measurements of one training."""

    transfer: Transfer
    alignments: Alignments


def alignments(gradients: GradientRounds, metric: str = "adam") -> Alignments:
    """The alignments for the measured losses, under the trained objective."""
    spec = gradients.spec(metric)
    halves = gradients.halves(spec)
    product, margin = _matrix_estimates(lambda rounds: _products(halves[rounds]), gradients.effort.rounds)
    squares = product.diagonal()
    # A norm whose interval reaches 0 would give a random cosine.
    norms = torch.where(squares > margin.diagonal(), squares, torch.nan).sqrt()
    cosine = (product / (norms[:, None] * norms)).clamp(-1, 1)
    matrices = (_rows(matrix) for matrix in (product, margin, cosine))
    return Alignments(spec.borders, gradients.metric(spec), *matrices)


def _products(halves: Tensor) -> Tensor:
    """[K, K]: inner products of mean gradients of different examples, from halves [R, K, 2, d]."""
    each = halves.transpose(1, 2).flatten(0, 1)
    count, total = len(each), each.sum(0)
    products = total @ total.T / count**2
    # On the diagonal, products of a half with itself are left out: they would count noise as gradient.
    pairs = total.square().sum(-1) - each.square().sum((0, 2))
    return products.diagonal_scatter(pairs / (count * (count - 1)))


def _matrix_estimates(statistic: Callable[[Tensor], Tensor], rounds: int) -> tuple[Tensor, Tensor]:
    """Values and half intervals of a matrix-valued statistic."""
    shape = statistic(torch.arange(rounds)).shape
    estimates = jackknife(lambda chosen: statistic(chosen).flatten(), rounds)
    values = torch.tensor([(each.value, each.high - each.value) for each in estimates], dtype=torch.float64)
    return values[:, 0].view(shape), values[:, 1].view(shape)


def _rows(matrix: Tensor) -> Matrix:
    return tuple(tuple(row) for row in matrix.tolist())

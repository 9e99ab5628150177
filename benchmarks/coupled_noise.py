"""Does opposite noise for neighbours in time make gradients less noisy? In Adam's metric.

python benchmarks/coupled_noise.py --keep

Two different images with noises e and -e have the mean gradient's variance (V + C) / 2, where C is the
covariance of g(x, e) and g(x', -e); with independent noise C is 0. So 1 + C / V is what opposite noise
leaves. For C, `IMAGES` images share a noise, the next ones have its opposite, and pairs of different rounds,
which are independent, give the product of the means: only what the coupling does remains.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from results import keep
from torch import Tensor

from stepwell.analyze.gradient_rounds import probe_setup
from stepwell.core.estimates import Estimate, jackknife
from stepwell.core.ranks import Alone
from stepwell.core.tick import Tick
from stepwell.data.source import ExampleSource
from stepwell.probes.context import ProbeContext
from stepwell.probes.gradients import Sketch, gradients_of
from stepwell.recipes.experiment import experiment
from stepwell.recipes.load import load
from stepwell.recipes.training import training_of
from stepwell.train.step import Training, train_step

STEPS, IMAGES, LINE = 400, 8, 0.93
Strata = tuple[tuple[float, float], tuple[float, float]]
"""Where the two times of a pair lie, as shares of the reference's mass."""

TITLE = "Opposite noise for neighbours in time: what it leaves of the gradient's variance"
HOW = (
    f"benchmarks/coupled_noise.py: `tiny`, {STEPS} steps at batch 64, learning rate 4e-3, draws from the "
    "reference; then in Adam's metric, over independent noise, with jackknife intervals of 95 %. At the same "
    "time: pairs at the middles of eight parts of time that the reference draws equally often, weighted by "
    "their variance; in a stratified batch: its neighbours in time."
)
COLUMNS = ["process", "data", "pairs", "variance left", f"surely below {LINE}", "per band, data to noise"]


@dataclass(frozen=True)
class Case:
    """A process on some data."""

    process: str
    data: str

    def settings(self, seed: int) -> list[str]:
        """Those of a short run, drawn as the objective is stated."""
        words = [f"data={self.data}", f"process={self.process}", "method=reference"]
        return [*words, "size=16", "lr=4e-3", "warm_up_steps=100", f"steps={STEPS}", f"seed={seed}"]


CIFAR = "runs/cifar10-subset.npz"
CASES = (
    *(Case(process, "fashion16") for process in ("linear", "flow", "edm:sigma_data=0.63")),
    *(Case(process, CIFAR) for process in ("linear", "flow", "edm:sigma_data=0.49")),
)


@dataclass(frozen=True)
class Design:
    """Which two times are a pair, in parts of time that the reference draws equally often."""

    title: str
    bands: int
    rounds: int
    neighbours: bool = True
    """One time in each half of a band; otherwise both are its middle."""

    def borders(self, band: int) -> Strata:
        """The two strata of a pair."""
        low, middle, high = ((band + part) / self.bands for part in (0.0, 0.5, 1.0))
        return ((low, middle), (middle, high)) if self.neighbours else ((middle, middle), (middle, middle))


DESIGNS = (
    Design("the same time", bands=8, rounds=40, neighbours=False),
    Design("a stratified batch of 4", bands=2, rounds=64),
    Design("a stratified batch of 16", bands=8, rounds=32),
    Design("a stratified batch of 64", bands=32, rounds=6),
)


class Measurement:
    """Sketches of a trained network's gradients, with images, times and noise of its own random stream."""

    def __init__(self, training: Training, source: ExampleSource, seed: int) -> None:
        self.training, self.source = training, source
        self.parameters = list(training.network.parameters())
        self.sketch = Sketch(self.parameters, signs=f"coupled noise {seed}")
        self.generator = torch.Generator().manual_seed(1000 + seed)
        self.setup = probe_setup(training)
        view = ProbeContext(Tick(), torch.empty(0), None, Alone(), self.setup)
        scales = [view.scale(parameter) for parameter in self.parameters]
        self.roots = [scale.sqrt() for scale in scales if scale is not None]

    def examples(self, count: int) -> Tensor:
        """Different images."""
        rows = torch.randperm(len(self.source), generator=self.generator)[:count]
        return self.source.examples(rows)

    def times(self, ends: tuple[float, float], count: int) -> Tensor:
        """Times between two shares of the reference's mass."""
        v = torch.rand(count, generator=self.generator, dtype=torch.float64)
        return self.setup.process.reference.quantile(ends[0] + (ends[1] - ends[0]) * v).float()

    def noise(self, *shape: int) -> Tensor:
        """Normal noise."""
        return torch.randn(shape, generator=self.generator)

    def gradient(self, x0: Tensor, noise: Tensor, u: Tensor, signs: Tensor | None = None) -> Tensor:
        """The sketch of the mean gradient in Adam's metric; signs make it a difference."""
        condition = self.training.conditioning.of(x0, None)
        losses = self.training.objective(self.training.network, x0, noise, u, condition).total
        gradients = gradients_of((losses if signs is None else losses * signs).mean(), self.parameters)
        pairs = zip(gradients, self.roots, strict=True)
        return self.sketch(None if g is None else g * root for g, root in pairs).double()

    def spread(self, strata: Strata) -> Tensor:
        """The variance of one example's gradient, the mean over the two strata of a pair."""
        x0, u = self.examples(2 * IMAGES), torch.cat([self.times(ends, IMAGES) for ends in strata])
        signs = torch.tensor([1.0, -1.0]).repeat(IMAGES)
        # Half of each stratum counts negative: expectations cancel, and of 2n examples V / 2n remains.
        return self.gradient(x0, self.noise(*x0.shape), u, signs).square().sum() * (2 * IMAGES)

    def pair(self, strata: Strata) -> Tensor:
        """[2, 2, d]: both strata, each with a noise and its opposite, which all their images share."""
        x0, e = self.examples(2 * IMAGES), self.noise(1, *self.source.shape)
        halves = [(part, self.times(ends, IMAGES)) for part, ends in zip(x0.chunk(2), strata, strict=True)]
        found = [self.gradient(x, s * e.expand_as(x), u) for x, u in halves for s in (1, -1)]
        return torch.stack(found).unflatten(0, (2, 2))

    def left(self, design: Design) -> list[Estimate]:
        """What opposite noise leaves of the variance: of the whole batch, then in each band."""
        bands = range(design.bands)
        spreads, pairs = list[Tensor](), list[Tensor]()
        for _ in range(design.rounds):
            strata = [design.borders(band) for band in bands]
            spreads.append(torch.stack([self.spread(both) for both in strata]))
            pairs.append(torch.stack([self.pair(both) for both in strata]))
        spread, (one, other) = torch.stack(spreads), torch.stack(pairs).unbind(2)
        coupled = ((one[..., 0, :] * other[..., 1, :]) + (one[..., 1, :] * other[..., 0, :])).sum(-1) / 2
        gram = torch.einsum("kbd,lbd->bkl", one.mean(2), other.mean(2))

        def statistic(rounds: Tensor) -> Tensor:
            among, count = gram[:, rounds][:, :, rounds], len(rounds)
            same = among.diagonal(dim1=1, dim2=2).sum(1)
            apart = (among.sum((1, 2)) - same) / (count * (count - 1))
            covariance, variance = coupled[rounds].mean(0) - apart, spread[rounds].mean(0)
            whole = 1 + covariance.sum() / variance.sum()
            return torch.cat([whole[None], 1 + covariance / variance])

        return jackknife(statistic, design.rounds)


def trained(case: Case, seed: int) -> Measurement:
    """A network after a short run, with its optimizer."""
    made = experiment(load("fashion16", case.settings(seed)))
    training = training_of(made, Accelerator(cpu=True))
    for step in range(STEPS):
        train_step(training, step)
    return Measurement(training, made.data.train, seed)


def _shown(left: Estimate) -> str:
    return f"{left.value:.3f} ({left.low:.3f} to {left.high:.3f})"


def _rows(case: Case, measurement: Measurement) -> list[list[str]]:
    rows = list[list[str]]()
    for design in DESIGNS:
        whole, *bands = measurement.left(design)
        each = " ".join(f"{band.value:.2f}" for band in bands) if design.bands <= 8 else ""
        below = "yes" if whole.high < LINE else "no"
        rows.append([case.process, f"data={case.data}", design.title, _shown(whole), below, each])
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Train, measure, keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", default=",".join(map(str, range(len(CASES)))))
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = list[list[str]]()
    for case in [CASES[int(index)] for index in given.cases.split(",")]:
        rows += _rows(case, trained(case, given.seed))
        if given.keep:
            keep("coupled-noise", TITLE, HOW, COLUMNS, rows)


if __name__ == "__main__":
    main()

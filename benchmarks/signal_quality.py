"""Do the probes see what is there? Running estimates against a reference from many more examples.

`neyman` and `alignment` ride along a uniform training run of the `small` U-Net with their default settings.
At four checkpoints their running estimates per stratum are compared with 256 examples in every stratum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from results import keep
from torch import Tensor

from stepwell.core.ranks import Alone
from stepwell.core.tick import Tick
from stepwell.data.source import to_unit
from stepwell.models.denoiser import Condition
from stepwell.pacer import Pacer
from stepwell.probes.context import ProbeContext, ProbeSetup
from stepwell.probes.gradients import Sketch, gradients_of
from stepwell.recipes.experiment import experiment
from stepwell.recipes.load import load
from stepwell.recipes.training import training_of
from stepwell.train.step import train_step

CHECKPOINTS = (100, 150, 220, 300)
SEEDS = (0, 1, 2)
EXAMPLES, CHUNKS, STRATA = 256, 8, 20


class Reference(NamedTuple):
    """[K] each."""

    spread: Tensor
    """The standard deviation of one example's gradient."""
    bound_gain: Tensor
    """The first-order decrease of the bound."""


class Ride:
    """A uniform run, and pacers that measure along it though its draws are not theirs."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.made = experiment(
            load("fashion16", ["model=small", "lr=1e-3", f"seed={seed}", "method=uniform"])
        )
        self.training = training_of(self.made, Accelerator(cpu=True))
        network = self.training.network

        def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
            return self.made.objective(network, x0, noise, u, condition).plain

        process, optimizer = self.made.process, self.training.optimizer
        self.pacers = {
            name: Pacer(name, process, loss_at=loss_at, optimizer=optimizer, network=network)
            for name in ("neyman", "alignment")
        }
        objective = self.made.objective
        self.setup = ProbeSetup(process, objective.weighting, loss_at, optimizer, network)

    def step(self, step: int) -> None:
        """One update by uniform draws; the pacers measure."""
        tick = Tick(self.seed, step)
        x0, condition = self.training.encode(self.training.batches.at(tick, 1))
        for pacer in self.pacers.values():
            pacer.draw(x0, tick, condition)
        train_step(self.training, step)
        for pacer in self.pacers.values():
            pacer.before_update()
            pacer.after_update()

    def learner(self, name: str) -> Any:
        """The sampler inside the combinators."""
        sampler: Any = self.pacers[name].sampler
        while hasattr(sampler, "sampler"):
            sampler = sampler.sampler
        return sampler

    def reference(self) -> Reference:
        """From EXAMPLES in every stratum."""
        generator = torch.Generator().manual_seed(1000 + self.seed)
        parameters = list(self.training.network.parameters())
        sketch = Sketch(parameters)
        spreads, trained, target = [], [], []
        for stratum in range(STRATA):
            rows = torch.randint(len(self.made.data.train), (EXAMPLES,), generator=generator)
            x0 = to_unit(self.made.data.train.fetch(rows))
            u = (stratum + torch.rand(EXAMPLES, generator=generator)) / STRATA
            noise = torch.randn(x0.shape, generator=generator)
            view = ProbeContext(Tick(), x0, Condition(None), Alone(), self.setup)
            found: dict[str | None, list[Tensor]] = {None: [], "vlb": []}
            for chunk in torch.arange(EXAMPLES).chunk(CHUNKS):
                for name, sketches in found.items():
                    losses = view.loss_at(x0[chunk], noise[chunk], u[chunk], Condition(None), name)
                    gradients = gradients_of(losses.mean(), parameters)
                    pairs = zip(gradients, parameters, strict=True)
                    sketches.append(sketch([_scaled(g, view.scale(p)) for g, p in pairs]))
            own = torch.stack(found[None])
            spreads.append((own.var(0).sum() * (EXAMPLES / CHUNKS)).sqrt())
            trained.append(own.mean(0))
            target.append(torch.stack(found["vlb"]).mean(0))
        return Reference(torch.stack(spreads), torch.stack(trained) @ torch.stack(target).mean(0))


def _scaled(gradient: Tensor | None, scale: Tensor | None) -> Tensor | None:
    return gradient if gradient is None or scale is None else gradient * scale.sqrt()


def correlation(one: Tensor, other: Tensor) -> float:
    """Pearson's."""
    return float(torch.corrcoef(torch.stack([one.double(), other.double()]))[0, 1])


def main() -> None:
    """Train, compare, keep."""
    torch.set_num_threads(1)
    rows: list[list[str]] = []
    for seed in SEEDS:
        ride = Ride(seed)
        for step in range(max(CHECKPOINTS)):
            ride.step(step)
            if step + 1 not in CHECKPOINTS:
                continue
            found = ride.reference()
            spread = correlation(ride.learner("neyman")._learned(), found.spread)
            gain = correlation(ride.learner("alignment").gains(), found.bound_gain)
            rows.append([str(seed), str(step + 1), f"{spread:.3f}", f"{gain:.3f}"])
            print(rows[-1], flush=True)
            keep(
                "signal-quality",
                "What the probes see: correlation with a reference of 256 examples a stratum",
                "benchmarks/signal_quality.py: Pearson correlation over 20 strata, fashion16, `small` U-Net "
                "(uniform draws, batch 64), default settings; the estimates are the running ones that a "
                "run would draw by. Goal: at least 0.7.",
                ["seed", "step", "neyman: standard deviation", "alignment: gain in the bound"],
                rows,
            )


if __name__ == "__main__":
    main()

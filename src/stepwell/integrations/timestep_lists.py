"""A sampler's density as a table over unit time, and lists of timesteps made from it.

For trainers whose code cannot be changed: what they read instead of a Pacer is written from these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.catalogue import build
from stepwell.catalogue.spec import Spec
from stepwell.core import require
from stepwell.core.density import Shift, Table, centres, edges
from stepwell.core.errors import Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import TimestepSampler
from stepwell.core.tick import Tick
from stepwell.samplers.combinators import WarmUp, Wrapped
from stepwell.samplers.over_steps import OverSteps

MOST_TIMES = 10_000_000
"""Of one list: some 100 MB of text."""
FINE_BINS = 64_000
"""Bins of a table that stands for a density in closed form: 64 in each thousandth of time."""


@dataclass(frozen=True)
class TimestepDensity:
    """One density over a process's unit time, which no training changes."""

    name: str
    """The sampler, as it is written."""
    process: NoiseProcess
    table: Table

    def probabilities(self) -> Tensor:
        """[T]: of each timestep, or of each thousandth of continuous time."""
        return self.table.masses(edges(len(self.process.grid())))

    def weights(self, u: Tensor) -> Tensor:
        """[n]: what a loss at u [n] is multiplied by so that the objective stays the process's own."""
        return self.process.reference.pdf(u) / self.table.pdf(u)

    def over_sigma(self) -> tuple[Tensor, Tensor]:
        """Borders [K + 1] in a flow's own time, after its shift, and the masses [K] between them."""
        return Shift(self.process.shift).forward(self.table.borders), self.table.shares


def density_of(spec: Spec, process: NoiseProcess) -> TimestepDensity:
    """The density that a sampler has before, during and after training."""
    if spec.parameters.get("shift") is not None and not process.interpolates:
        raise Unsupported(
            f"shift={spec.parameters['shift']} is for flows, and {process} is none: leave it "
            "out, or give --process flow."
        )
    sampler = build.sampler(spec, process)
    if sampler.learns:
        raise Unsupported(
            f"{spec.name} learns its density from losses and has none before training: log pairs of timestep "
            "and loss, and write stepwell fit LOSSES.csv."
        )
    if _changes(sampler):
        raise Unsupported(
            f"{spec} changes its density while training runs: write a table for each part of it."
        )
    mass = sampler.cdf(fine_borders(process)).double()
    return TimestepDensity(str(spec), process, Table(fine_borders(process), mass.diff().clamp(min=0)))


def _changes(sampler: TimestepSampler) -> bool:
    """Whether a sampler, or one that it wraps, depends on the step."""
    if isinstance(sampler, (WarmUp, OverSteps)):
        return True
    return isinstance(sampler, Wrapped) and _changes(sampler.sampler)


def fine_borders(process: NoiseProcess) -> Tensor:
    """[K + 1]: even, and never inside a discrete timestep."""
    counted = process.timesteps or 1
    return edges(counted * max(1, FINE_BINS // counted))


def stratified_times(density: Table, steps: int, batch: int, seed: int) -> Tensor:
    """Unit times [steps x batch] in a shuffled order: each has the same share of the density around it.

    Each `batch` of neighbours in the list has one of every part of the density (Kingma et al. 2021, VDM).
    """
    steps, batch = require.count("steps", steps), require.count("batch", batch)
    require.count("steps x batch", steps * batch, most=MOST_TIMES)
    parts = density.quantile(centres(steps * batch)).reshape(batch, steps)
    generator = Tick(seed=seed).generator("timestep list")
    turns = torch.rand(batch, steps, generator=generator).argsort(1)
    batches = parts.gather(1, turns).T
    places = torch.rand(steps, batch, generator=generator).argsort(1)
    return batches.gather(1, places).flatten()

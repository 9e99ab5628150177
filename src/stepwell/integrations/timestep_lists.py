"""A sampler's density as a table over unit time, and lists of timesteps made from it.

For trainers whose code cannot be changed: what they read instead of a Pacer is written from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.catalogue import build
from stepwell.catalogue.spec import Spec
from stepwell.core import require
from stepwell.core.density import Shift, Table, centres, edges
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.tick import Tick

FINE_BINS = 64_000
"""Bins of a table that stands for a density in closed form: 64 in each thousandth of time."""
SHAPES = "16,128,128 (channels, height, width), 16,21,60,104 (with frames) or 4096,64 (tokens, width)"


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


def density_of(spec: Spec, process: NoiseProcess, shape: Sequence[int] | None = None) -> TimestepDensity:
    """The density of a sampler's draws for examples of this shape, without the batch."""
    if spec.parameters.get("shift") is not None and not process.interpolates:
        raise Unsupported(
            f"shift={spec.parameters['shift']} moves the time of a flow, and {process} is none: leave it "
            "out, or give --process flow."
        )
    for changing in ("warm_up_steps", "stages"):
        if spec.parameters.get(changing) is not None:
            raise Unsupported(
                f"{changing} changes the density while training runs: make one table for each part."
            )
    sampler = build.sampler(spec, process)
    if sampler.learns:
        raise Unsupported(
            f"{spec.name} learns its density from losses and has none before training: log pairs of timestep "
            "and loss, and write stepwell fit LOSSES.csv."
        )
    # Of a shape only: samplers read the size of x0, not its values.
    x0 = None if shape is None else torch.zeros(()).expand(1, *_checked(shape))
    mass = sampler.cdf(fine_borders(process), x0).double()
    return TimestepDensity(str(spec), process, Table(fine_borders(process), mass.diff().clamp(min=0)))


def fine_borders(process: NoiseProcess) -> Tensor:
    """[K + 1]: even, and never inside a discrete timestep."""
    counted = process.timesteps or 1
    return edges(counted * max(1, FINE_BINS // counted))


def _checked(shape: Sequence[int]) -> Sequence[int]:
    if not 2 <= len(shape) <= 4 or min(shape) < 1:
        raise InvalidParameter(
            f"{','.join(map(str, shape))} is no shape of an image, a video or a sequence: write {SHAPES}."
        )
    return shape


def stratified_times(density: Table, steps: int, batch: int, seed: int) -> Tensor:
    """Unit times [steps x batch] in a shuffled order: each has the same share of the density around it.

    Each `batch` of neighbours in the list has one of every part of the density (Kingma et al. 2021, VDM).
    """
    steps, batch = require.count("steps", steps), require.count("batch", batch)
    parts = density.quantile(centres(steps * batch)).reshape(batch, steps)
    generator = Tick(seed=seed).generator("timestep list")
    turns = torch.rand(batch, steps, generator=generator).argsort(1)
    batches = parts.gather(1, turns).T
    places = torch.rand(steps, batch, generator=generator).argsort(1)
    return batches.gather(1, places).flatten()

"""Held-out loss in bands of time, at fixed times with fixed noise; every objective is computed from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepwell.catalogue.build import weighting
from stepwell.catalogue.find import WEIGHTINGS
from stepwell.core import require
from stepwell.core.condition import select
from stepwell.core.density import edges, inside
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample
from stepwell.core.tick import stream_key
from stepwell.evaluate.quadrature import MeanOverTime, even_times
from stepwell.objective import DenoiserFn, Objective, split_output
from stepwell.weightings import Weighting


class BandLosses(NamedTuple):
    """A denoiser's losses on held-out images, in float64 on the CPU."""

    borders: Tensor
    """[bands + 1]: in unit time."""
    plain: Tensor
    """[bands]: the mean squared error on the network's own target, over all timesteps of the band."""
    objectives: dict[str, float]
    """The mean weighted loss under the process's reference density, by name of the weighting."""


class HeldOutLoss:
    """The loss of any denoiser on the same images, times and noise, for any batch size and device.

    Every image is used once in each band. The times are evenly spaced from the first timestep to the last and
    dealt to the images of a band in a fixed random order, so that no class or image is always at one end.
    `quadrature` makes means over time of them. One image in one band is evaluated in the middle.
    """

    def __init__(
        self,
        process: NoiseProcess,
        x0: Tensor,
        condition: Any = None,
        bands: int = 20,
        seed: int = 0,
        batch: int = 256,
    ) -> None:
        self.process, self.x0, self.condition = process, float_images(x0), condition
        self.bands, self.seed = require.count("bands", bands, most=require.MOST_STRATA), seed
        self.batch = require.count("batch", batch)
        self._objective = Objective(process)
        mean = MeanOverTime(process, torch.cat([self.times(band) for band in range(bands)]))
        self._of_bands = mean.of_bands(bands)
        self._of_objectives = {
            name: mean.of_objective(weight) for name, weight in _supported_weightings(process).items()
        }

    def __call__(self, denoiser: DenoiserFn) -> BandLosses:
        """The losses of a denoiser that is in eval mode."""
        losses = torch.cat([self.losses(denoiser, band) for band in range(self.bands)])
        objectives = {name: float(factors @ losses) for name, factors in self._of_objectives.items()}
        return BandLosses(edges(self.bands), self._of_bands @ losses, objectives)

    def losses(self, denoiser: DenoiserFn, band: int) -> PerExample:
        """The plain loss [N] of every image in one band, computed in float32 and kept in float64."""
        u, noise = self.times(band), fixed_noise(self.x0, self.seed, "held-out", band)
        parts: list[Tensor] = []
        with torch.no_grad():
            for rows in batches(len(u), self.batch):
                x0, condition = self.x0[rows], select(self.condition, rows)
                times = u[rows].to(x0.device)
                losses = self._objective(on_target(denoiser), x0, noise[rows].to(x0), times, condition)
                parts.append(losses.plain.double().cpu())
        return torch.cat(parts)

    def times(self, band: int) -> PerExample:
        """The unit time [N] of every image in one band, in float32, as training draws them."""
        count = len(self.x0)
        order = torch.randperm(count, generator=fixed_generator(self.seed, "held-out", "order", band))
        u = even_times(self.process, self.bands * count)[band * count + order]
        return inside(u.float(), 0.0, 1.0)


def float_images(x0: Tensor) -> Tensor:
    """Images [N, ...] in float32 or better, so that losses are too."""
    if x0.dim() < 2 or len(x0) == 0:
        raise InvalidParameter(f"x0 must hold at least one example [N, ...], not shape {tuple(x0.shape)}.")
    if not x0.is_floating_point():
        raise InvalidParameter(f"x0 must be floats in [-1, 1], not {x0.dtype}: write x0.float() / 127.5 - 1.")
    return x0.to(torch.promote_types(x0.dtype, torch.float32))


def batches(count: int, size: int) -> Iterator[slice]:
    """Slices over all rows, at most `size` each."""
    return (slice(start, start + size) for start in range(0, count, size))


def fixed_generator(*parts: int | str) -> torch.Generator:
    """A CPU generator seeded by the parts, so that every device gets the same numbers."""
    return torch.Generator().manual_seed(stream_key(*parts))


def fixed_noise(like: Tensor, *parts: int | str) -> Tensor:
    """Standard normal noise in the shape of `like`, float32 on the CPU, seeded by the parts."""
    return torch.randn(like.shape, generator=fixed_generator(*parts, "noise"))


def on_target(denoiser: DenoiserFn) -> DenoiserFn:
    """A denoiser without its learned variance, the second half of the output channels."""

    def call(input: Tensor, time: PerExample, condition: Any) -> Tensor:
        return split_output(denoiser(input, time, condition), input)[0]

    return call


def _supported_weightings(process: NoiseProcess) -> dict[str, Weighting]:
    """The catalogue's fixed weightings, with their defaults, that this process supports."""
    supported: dict[str, Weighting] = {}
    for entry in WEIGHTINGS:
        if entry.learns:
            continue
        candidate = weighting(entry.name)
        try:
            candidate(process, torch.tensor([0.5]))
        except Unsupported:
            continue
        supported[entry.name] = candidate
    return supported

"""Held-out loss per noise band, at fixed times with fixed noise: every objective is read from this curve."""

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
from stepwell.objective import Denoiser, Objective
from stepwell.weightings import Weighting


class BandLosses(NamedTuple):
    """What a denoiser loses on held-out images, in float64 on the CPU."""

    borders: Tensor
    """[bands + 1]: of the bands, in unit time."""
    plain: Tensor
    """[bands]: the mean squared error on the network's own target."""
    objectives: dict[str, float]
    """By the catalogue's name of the weighting: its mean weighted loss under the process's reference."""


class HeldOutLoss:
    """The loss of any denoiser on the same images, times and noise, whatever the batch size or the device.

    Every image is seen once in each band. Within a band the times are evenly spaced and the images take them
    in an order that is random but fixed, so that neither a class nor an image sits at one end of all bands.
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
        self.bands, self.seed = require.count("bands", bands), seed
        self.batch = require.count("batch", batch)
        self._objective = Objective(process)
        self._weightings = _meaningful(process)

    def __call__(self, denoiser: Denoiser) -> BandLosses:
        """The losses of a denoiser that is in eval mode."""
        plain = torch.zeros(self.bands, dtype=torch.float64)
        sums, mass = dict.fromkeys(self._weightings, 0.0), 0.0
        for band in range(self.bands):
            losses, u = self.losses(denoiser, band), self.times(band).double()
            plain[band] = losses.mean()
            density = self.process.reference.pdf(u)
            mass += float(density.sum())
            for name, weight in self._weightings.items():
                sums[name] += float((density * weight(self.process, u) * losses).sum())
        return BandLosses(edges(self.bands), plain, {name: total / mass for name, total in sums.items()})

    def losses(self, denoiser: Denoiser, band: int) -> PerExample:
        """The plain loss [N] of every image in one band, computed in float32 and kept in float64."""
        u, noise = self.times(band), fixed_noise(self.x0, self.seed, "held-out", band)
        found: list[Tensor] = []
        with torch.no_grad():
            for rows in batches(len(u), self.batch):
                x0, given = self.x0[rows], select(self.condition, rows)
                at = u[rows].to(x0.device)
                losses = self._objective(on_target(denoiser), x0, noise[rows].to(x0), at, given)
                found.append(losses.plain.double().cpu())
        return torch.cat(found)

    def times(self, band: int) -> PerExample:
        """The unit time [N] of every image in one band, in float32, as training draws them."""
        count = len(self.x0)
        order = torch.randperm(count, generator=fixed_generator(self.seed, "held-out", "order", band))
        u = (band + (order.double() + 0.5) / count) / self.bands
        return inside(u.float(), 0.0, 1.0)


def float_images(x0: Tensor) -> Tensor:
    """Images [N, ...] in float32 or better, so that losses are too."""
    if x0.dim() < 2 or len(x0) == 0:
        raise InvalidParameter(f"x0 must hold at least one example [N, ...], not shape {tuple(x0.shape)}.")
    if not x0.is_floating_point():
        raise InvalidParameter(f"x0 must be floats in [-1, 1], not {x0.dtype}: write x0.float() / 127.5 - 1.")
    return x0.to(torch.promote_types(x0.dtype, torch.float32))


def batches(count: int, size: int) -> Iterator[slice]:
    """All rows in turn, at most `size` at a time."""
    return (slice(start, start + size) for start in range(0, count, size))


def fixed_generator(*parts: int | str) -> torch.Generator:
    """A CPU generator, so that every device sees the same bits."""
    return torch.Generator().manual_seed(stream_key(*parts))


def fixed_noise(like: Tensor, *parts: int | str) -> Tensor:
    """Standard normal noise in the shape of `like`, in float32 on the CPU: a function of the parts alone."""
    return torch.randn(like.shape, generator=fixed_generator(*parts, "noise"))


def on_target(denoiser: Denoiser) -> Denoiser:
    """A denoiser without its learned variance, which networks say after the answer to the target."""

    def call(input: Tensor, time: PerExample, condition: Any) -> Tensor:
        output = denoiser(input, time, condition)
        answer = output[:, : input.shape[1]] if output.shape[1] == 2 * input.shape[1] else output
        if answer.shape != input.shape:
            raise InvalidParameter(
                f"the denoiser's output is {tuple(output.shape)} for an input of {tuple(input.shape)}: "
                "it must be as large, or have twice the channels if it learns a variance."
            )
        return answer

    return call


def _meaningful(process: NoiseProcess) -> dict[str, Weighting]:
    """The weightings of the catalogue, with defaults, that this process has."""
    found: dict[str, Weighting] = {}
    for entry in WEIGHTINGS:
        candidate = weighting(entry.name)
        try:
            candidate(process, torch.tensor([0.5]))
        except Unsupported:
            continue
        found[entry.name] = candidate
    return found

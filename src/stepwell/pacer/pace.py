"""The pace of one micro-batch: the same times in every unit that a host may count in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stepwell.catalogue import build
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import Lookup, PerExample, precise
from stepwell.weightings import Unweighted, Weighting


@dataclass(frozen=True, slots=True)
class Pace:
    """The timesteps of one micro-batch, and what its losses are worth.

    Time runs from data to noise in `u`, `timesteps` and `sigma`. Hosts that count the other way take
    `indices` (schedulers, discrete timesteps) or `1 - sigma` (flows where 0 is noise, such as SiT's).
    """

    u: PerExample
    """[B]: unit time, 0 is data and 1 is noise."""
    correction: PerExample
    process: NoiseProcess
    weighting: Weighting
    table: Lookup | None = None
    """The host scheduler's own `timesteps`, where they are no whole numbers."""

    @property
    def timesteps(self) -> PerExample:
        """[B]: what the network is told; int64 of 0..T-1 if the process counts, else its own time."""
        if self.table is None:
            return self.process.time(self.u)
        # The scheduler's own numbers: hosts look them up with ==, and rounding has the last digit differ.
        return self.table.at(self.indices, torch.float32)

    @property
    def indices(self) -> PerExample:
        """[B]: places in a scheduler's `timesteps`, which fall: 0 is the noisiest."""
        count = self.process.timesteps
        if count is None:
            raise Unsupported(
                f"{self.process!r} has continuous time, which nothing can index: use timesteps, sigma or u."
            )
        rising = (self.u.to(precise(self.u)) * count).long().clamp_(0, count - 1)
        return count - 1 - rising

    @property
    def sigma(self) -> PerExample:
        """[B]: the factor on the noise: EDM's sigma, a flow's share of noise in [0, 1]."""
        return self.process.scales(self.u)[1]

    @property
    def weight(self) -> PerExample:
        """[B]: correction x weighting, the factor on the plain losses."""
        return self.correction * self.weighting(self.process, self.u)


def table_of(scheduler: Any, process: NoiseProcess) -> Lookup | None:
    """The `timesteps` of the scheduler that a process was read from; None if they are its indices."""
    told = getattr(scheduler, "timesteps", None)
    if isinstance(scheduler, NoiseProcess) or not isinstance(told, torch.Tensor):
        return None
    counts = not told.is_floating_point() or len(told) != process.timesteps
    return None if counts or not process.time(process.grid()).is_floating_point() else Lookup(told)


def trained_and_handed(own: Weighting | str, host: Weighting | str | None) -> tuple[Weighting, Weighting]:
    """The weighting that is trained, whoever applies it, and the one that a pace hands out."""
    given = own if host is None else host
    trained = build.weighting(given) if isinstance(given, str) else given
    if host is None:
        return trained, trained
    if own != "none":
        raise InvalidParameter(
            "weighting and host_weighting would weight one loss twice: give weighting= if the loop leaves "
            "that to pace.weight, host_weighting= if it weights by itself."
        )
    return trained, Unweighted()

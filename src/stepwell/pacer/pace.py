"""What `Pacer.draw` returns: the times of one micro-batch in every unit that a loop may use, and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepwell.catalogue import build
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.noise import normal, opposite_neighbours
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import Lookup, PerExample, precise
from stepwell.core.tick import Tick
from stepwell.weightings import Unweighted, Weighting


@dataclass(frozen=True, slots=True)
class Pace:
    """The timesteps of one micro-batch, and the weights of its losses.

    Time runs from data to noise in `u`, `timesteps` and `sigma`. Hosts that count the other way take
    `indices` (schedulers, discrete timesteps) or `1 - sigma` (flows where 0 is noise, such as SiT's).
    """

    u: PerExample
    """[B]: unit time, 0 is data and 1 is noise."""
    correction: PerExample
    """[B]: reference / density of an unbiased sampler, else 1."""
    process: NoiseProcess
    weighting: Weighting
    tick: Tick
    noise: str = "independent"
    """How the noises of the micro-batch hang together: independent or paired."""
    table: Lookup | None = None
    """The scheduler's own `timesteps`, if they are not whole numbers."""

    @property
    def timesteps(self) -> PerExample:
        """[B]: the network's time input; int64 of 0..T-1 on a discrete process."""
        if self.table is None:
            return self.process.time(self.u)
        # The scheduler's own numbers: scripts look them up with ==, so the last digit counts.
        return self.table.at(self.indices, torch.float32)

    @property
    def indices(self) -> PerExample:
        """[B]: positions in a scheduler's descending `timesteps`: 0 is the noisiest."""
        count = self.process.timesteps
        if count is None:
            raise Unsupported(
                f"{self.process} has continuous time, which has no indices: use timesteps, sigma or u."
            )
        rising = (self.u.to(precise(self.u)) * count).long().clamp_(0, count - 1)
        return count - 1 - rising

    @property
    def sigma(self) -> PerExample:
        """[B]: the factor on the noise: EDM's sigma, a flow's share of noise in [0, 1]."""
        return self.process.scales(self.u)[1]

    @property
    def weight(self) -> PerExample:
        """[B]: correction x weighting, the factor on the plain losses.

        A term that no weighting is meant for (a learned variance's) has `correction` as its factor.
        """
        return self.correction * self.weighting(self.process, self.u)

    def noise_like(self, x0: Tensor) -> Tensor:
        """Normal noise [B, ...] like x0, the same in every call; `paired`: opposite for neighbours in time.

        It follows the tick, so that a resumed loop has it again. Pairs lie within this micro-batch.
        """
        if x0.dim() == 0 or len(x0) != len(self.u):
            raise InvalidParameter(
                f"these timesteps are of {len(self.u)} examples, and noise was asked for like a tensor of "
                f"shape {tuple(x0.shape)}: give the examples that were drawn for, or their latents."
            )
        noise = normal(x0, self.tick)
        return opposite_neighbours(noise, self.u) if self.noise == "paired" else noise


def timestep_table(scheduler: Any, process: NoiseProcess) -> Lookup | None:
    """The `timesteps` of the scheduler that a process was read from; None if they are 0..T-1."""
    timesteps = getattr(scheduler, "timesteps", None)
    if isinstance(scheduler, NoiseProcess) or not isinstance(timesteps, torch.Tensor):
        return None
    if not timesteps.is_floating_point() or len(timesteps) != process.timesteps:
        return None
    return Lookup(timesteps) if process.time(process.grid()).is_floating_point() else None


def resolve_weightings(
    weighting: Weighting | str, host_weighting: Weighting | str | None
) -> tuple[Weighting, Weighting]:
    """The weighting that is trained, whoever applies it, and the part of it that `Pace.weight` has."""
    if host_weighting is None:
        trained = _weighting(weighting)
        return trained, trained
    if weighting != "none":
        raise InvalidParameter(
            "weighting and host_weighting would weight one loss twice: give weighting= if the loop leaves "
            "that to pace.weight, host_weighting= if it weights by itself."
        )
    return _weighting(host_weighting), Unweighted()


def _weighting(spec: Weighting | str) -> Weighting:
    return build.weighting(spec) if isinstance(spec, str) else spec

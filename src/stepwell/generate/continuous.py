"""Where a solver stops on its way through a process in continuous time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample, per_example, precise

Network = Callable[[Tensor, PerExample], Tensor]
"""(input [B, C, H, W], time [B]) -> output [B, C, H, W], guided already."""
_LANGEVIN_SNR = 0.16
"""Song et al. 2021, Table 5: the length of a corrector's step, relative to the score's."""


class Stop(NamedTuple):
    """A place on the way: unit time, and where it is on the line y = (1 - k t) x0 + t eps."""

    u: float
    scale: float
    """a + k s: x = scale y."""
    t: float


class Guess(NamedTuple):
    """What the network's output stands for, [B, C, H, W] each."""

    x0: Tensor
    eps: Tensor


@dataclass(frozen=True)
class ContinuousRoute:
    """From noise to data, one batch after the other."""

    process: NoiseProcess
    solver: str
    times: Tensor
    """[steps]: unit times, in float64."""
    clip: float | None = 1.0

    @property
    def bend(self) -> float:
        """k."""
        return float(self.process.interpolates)

    def follow(self, network: Network, noise: Tensor, generators: Sequence[Generator]) -> Tensor:
        """Images [B, C, H, W] from unit noise; `generators` make what noise is added on the way."""
        places = self.stops()
        y = places[0].t * noise
        for here, there in pairwise(places):
            y = STEPS[self.solver](_Leg(self, network, here, there, generators), y)
        return y

    def stops(self) -> list[Stop]:
        """Every place, the data last: there x = y."""
        signal, noise = self.process.scales(self.times)
        scale = signal + self.bend * noise
        columns = (self.times.tolist(), scale.tolist(), (noise / scale).tolist())
        return [*(Stop(*values) for values in zip(*columns, strict=True)), Stop(0.0, 1.0, 0.0)]

    def guess(self, network: Network, y: Tensor, at: Stop) -> Guess:
        """x0, clipped, and the eps that goes with it."""
        u = torch.full((len(y),), at.u, dtype=precise(y), device=y.device)
        x = at.scale * y
        shown = (per_example(self.process.input_scale(u), x) * x).to(x.dtype)
        told = self.process.time(u).to(torch.promote_types(y.dtype, torch.float32))
        x0 = self.process.recover(network(shown, told), x, u)
        if self.clip is not None:
            x0 = x0.clamp(-self.clip, self.clip)
        return Guess(x0, (y - (1 - self.bend * at.t) * x0) / at.t)


class _Leg(NamedTuple):
    """From one stop to the next."""

    route: ContinuousRoute
    network: Network
    here: Stop
    there: Stop
    generators: Sequence[Generator]

    def slope(self, y: Tensor, at: Stop) -> Tensor:
        x0, eps = self.route.guess(self.network, y, at)
        return eps - self.route.bend * x0

    def fresh_noise(self, like: Tensor) -> Tensor:
        """Of each image's own generator, so that no image depends on its batch."""
        drawn = [torch.randn(like.shape[1:], generator=generator) for generator in self.generators]
        return torch.stack(drawn).to(like)


def _euler(leg: _Leg, y: Tensor) -> Tensor:
    """The ODE to first order: DDIM's step."""
    return y + (leg.there.t - leg.here.t) * leg.slope(y, leg.here)


def _heun(leg: _Leg, y: Tensor) -> Tensor:
    """The trapezoid; the last step is Euler's, since eps is not defined at the data."""
    length = leg.there.t - leg.here.t
    first = leg.slope(y, leg.here)
    moved = y + length * first
    if leg.there.t == 0:
        return moved
    return y + length * (first + leg.slope(moved, leg.there)) / 2


def _ancestral(leg: _Leg, y: Tensor) -> Tensor:
    """The posterior of the next stop given y and the guessed x0; DDPM's step, at any noise levels."""
    x0, eps = leg.route.guess(leg.network, y, leg.here)
    bend, here, there = leg.route.bend, leg.here.t, leg.there.t
    # sigma' / sigma, with sigma = t / (1 - k t): 0 at a flow's pure noise.
    kept = there * (1 - bend * here) / (here * (1 - bend * there))
    mixed = kept * eps
    if there > 0:
        mixed = mixed + math.sqrt(1 - kept**2) * leg.fresh_noise(y)
    return (1 - bend * there) * x0 + there * mixed


def _predictor_corrector(leg: _Leg, y: Tensor) -> Tensor:
    """An ancestral step, then one of Langevin dynamics at the new level, on y / (1 - k t) = x0 + sigma eps.

    The step's length is that of each image; Song et al. take the batch's mean.
    """
    y = _ancestral(leg, y)
    if leg.there.t == 0:
        return y
    noise, eps = leg.fresh_noise(y), leg.route.guess(leg.network, y, leg.there).eps
    # The score is -eps / sigma, so 2 (r |noise| / |score|)^2 is 2 (r sigma |noise| / |eps|)^2; t is sigma in
    # units of y.
    ratio = _LANGEVIN_SNR * per_example(_norm(noise) / _norm(eps).clamp(min=1e-12), y)
    return y + leg.there.t * (2 * ratio * noise - 2 * ratio**2 * eps)


def _norm(values: Tensor) -> PerExample:
    return values.square().reshape(len(values), -1).sum(1).sqrt()


STEPS: dict[str, Callable[[_Leg, Tensor], Tensor]] = {
    "euler": _euler,
    "heun": _heun,
    "ancestral": _ancestral,
    "predictor-corrector": _predictor_corrector,
}


def continuous_route(process: NoiseProcess, solver: str, steps: int, clip: float | None) -> ContinuousRoute:
    """`steps` steps of a solver through a process in continuous time."""
    process.require_solver(solver)
    if process.timesteps is not None and steps > process.timesteps:
        raise InvalidParameter(
            f"{steps} denoising steps are more than the process's {process.timesteps} timesteps."
        )
    return ContinuousRoute(process, solver, process.solver_times(steps), clip)

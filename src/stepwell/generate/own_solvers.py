"""Our own solvers, for every process that is not DDPM's chain: its ODE or its SDE from noise to data.

They step along y = x / (signal + k noise) = (1 - k t) x0 + t eps, with k = 1 for flows and 0 for all others,
where y is x0 + sigma eps.
"""

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
"""(input [B, C, H, W], time [B]) -> output [B, C, H, W], guidance included."""
_LANGEVIN_SNR = 0.16
"""Song et al. 2021, Table 5: the length of a corrector's step, relative to the score's."""


class Level(NamedTuple):
    """A noise level: unit time, the scale of x = scale y, and t."""

    u: float
    scale: float
    t: float


class Prediction(NamedTuple):
    """What the network's output stands for, [B, C, H, W] each."""

    x0: Tensor
    eps: Tensor


class OwnSolver:
    """`steps` steps of a named solver through a process; `clip` is the largest value of a predicted x0."""

    def __init__(self, process: NoiseProcess, name: str, steps: int, clip: float | None = 1.0) -> None:
        if process.timesteps is not None and steps > process.timesteps:
            raise InvalidParameter(
                f"{steps} denoising steps are more than the process's {process.timesteps} timesteps."
            )
        self.process, self.clip, self.k = process, clip, float(process.interpolates)
        self.step = STEPS[process.require_solver(name)]
        self.times = process.solver_times(steps)

    def solve(self, network: Network, noise: Tensor, generators: Sequence[Generator]) -> Tensor:
        """Images [B, C, H, W] from unit noise; image i's generator draws the noise that is added to it."""
        batch, levels = _Batch(self, network, generators), self.levels()
        y = levels[0].t * noise
        for here, there in pairwise(levels):
            y = self.step(batch, y, here, there)
        return y

    def levels(self) -> list[Level]:
        """Every noise level; the last one is the data, where x = y."""
        signal, noise = self.process.scales(self.times)
        scale = signal + self.k * noise
        columns = (self.times.tolist(), scale.tolist(), (noise / scale).tolist())
        return [*map(Level, *columns), Level(0.0, 1.0, 0.0)]


@dataclass(frozen=True)
class _Batch:
    """One batch of images on its way from noise to data."""

    solver: OwnSolver
    network: Network
    generators: Sequence[Generator]

    def predict(self, y: Tensor, at: Level) -> Prediction:
        """x0, clipped, and the eps that goes with it."""
        process, clip = self.solver.process, self.solver.clip
        u = torch.full((len(y),), at.u, dtype=precise(y), device=y.device)
        x = at.scale * y
        scaled = (per_example(process.input_scale(u), x) * x).to(x.dtype)
        time = process.time(u).to(torch.promote_types(y.dtype, torch.float32))
        x0 = process.recover(self.network(scaled, time), x, u)
        if clip is not None:
            x0 = x0.clamp(-clip, clip)
        return Prediction(x0, (y - (1 - self.solver.k * at.t) * x0) / at.t)

    def slope(self, y: Tensor, at: Level) -> Tensor:
        """dy / dt of the ODE."""
        x0, eps = self.predict(y, at)
        return eps - self.solver.k * x0

    def fresh_noise(self, like: Tensor) -> Tensor:
        """Noise from each image's own generator, so that no image depends on its batch."""
        drawn = [torch.randn(like.shape[1:], generator=generator) for generator in self.generators]
        return torch.stack(drawn).to(like)


def _euler(batch: _Batch, y: Tensor, here: Level, there: Level) -> Tensor:
    """The ODE to first order: DDIM's step."""
    return y + (there.t - here.t) * batch.slope(y, here)


def _heun(batch: _Batch, y: Tensor, here: Level, there: Level) -> Tensor:
    """The trapezoid; the last step is Euler's, since eps is not defined at the data."""
    length, first = there.t - here.t, batch.slope(y, here)
    moved = y + length * first
    if there.t == 0:
        return moved
    return y + length * (first + batch.slope(moved, there)) / 2


def _ancestral(batch: _Batch, y: Tensor, here: Level, there: Level) -> Tensor:
    """The posterior of the next level given y and the predicted x0; DDPM's step, at any noise levels."""
    (x0, eps), k = batch.predict(y, here), batch.solver.k
    # sigma' / sigma, with sigma = t / (1 - k t): 0 at a flow's pure noise.
    kept = there.t * (1 - k * here.t) / (here.t * (1 - k * there.t))
    mixed = kept * eps
    if there.t > 0:
        mixed = mixed + math.sqrt(1 - kept**2) * batch.fresh_noise(y)
    return (1 - k * there.t) * x0 + there.t * mixed


def _predictor_corrector(batch: _Batch, y: Tensor, here: Level, there: Level) -> Tensor:
    """An ancestral step, then one of Langevin dynamics at the new level, on y / (1 - k t) = x0 + sigma eps.

    The step's length is that of each image; Song et al. take the batch's mean.
    """
    y = _ancestral(batch, y, here, there)
    if there.t == 0:
        return y
    noise, eps = batch.fresh_noise(y), batch.predict(y, there).eps
    # The score is -eps / sigma, so 2 (r |noise| / |score|)^2 is 2 (r sigma |noise| / |eps|)^2; t is sigma in
    # units of y.
    ratio = _LANGEVIN_SNR * per_example(_norm(noise) / _norm(eps).clamp(min=1e-12), y)
    return y + there.t * (2 * ratio * noise - 2 * ratio**2 * eps)


def _norm(values: Tensor) -> PerExample:
    return values.square().reshape(len(values), -1).sum(1).sqrt()


STEPS: dict[str, Callable[[_Batch, Tensor, Level, Level], Tensor]] = {
    "heun": _heun,
    "euler": _euler,
    "ancestral": _ancestral,
    "predictor-corrector": _predictor_corrector,
}

"""How much x changes from one timestep to the next, and SpeeD's areas (Wang et al. 2024, Theorem 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import Unsupported
from stepwell.core.process import NoiseProcess

CONVERGED = 0.99
"""The share of its final variance at which an increment counts as converged.

SpeeD's paper ties its threshold to T and its code fixes t = 700; a fixed share gives the same areas
for any number of timesteps (0.674 of the linear schedule, where the code says 0.7).
"""


@dataclass(frozen=True)
class Increments:
    """x_{t+1} - x_t given x0, for neighbouring timesteps: a normal around `mean` x0."""

    u: Tensor
    """[T - 1]: the border between the two timesteps."""
    mean: Tensor
    """[T - 1]: the factor on x0."""
    variance: Tensor
    """[T - 1]: per dimension."""


@dataclass(frozen=True)
class Areas:
    """Unit times where areas end: acceleration [0, accelerates_until), deceleration, then convergence."""

    accelerates_until: float
    converges_from: float


def increments(
    process: NoiseProcess, noise: Literal["fresh", "chain"] = "fresh", *, unit_variance: bool = False
) -> Increments:
    """The increments of any process in closed form.

    `fresh`: x_t and x_{t+1} carry independent noise, as two training examples do; this is SpeeD's
    theorem, variance 2 - abar_t (1 + alpha_{t+1}). `chain`: neighbours on one forward trajectory.
    `unit_variance` divides each x by sqrt(signal^2 + noise^2), which is 1 for DDPM's processes.
    """
    require.one_of("noise", noise, ("fresh", "chain"))
    grid = process.grid()
    signal, spread = process.scales(grid)
    if unit_variance:
        total = torch.sqrt(signal**2 + spread**2)
        signal, spread = signal / total, spread / total
    variance = spread[1:] ** 2 + spread[:-1] ** 2
    if noise == "chain":
        # Markov: x_{t+1} = (a'/a) x_t + fresh noise, so the covariance given x0 is (a'/a) s^2.
        variance = variance - 2 * signal[1:] / signal[:-1] * spread[:-1] ** 2
    return Increments((grid[1:] + grid[:-1]) / 2, signal.diff(), variance)


def areas(process: NoiseProcess, converged: float = CONVERGED) -> Areas:
    """The acceleration, deceleration and convergence areas of any process, at unit variance.

    The variance of the increments rises ever faster, then ever more slowly, then hardly at all: the
    first border is where its rate peaks, the second where it has reached `converged` of its maximum. At
    0.99 little more than 1 % of the image is signal there, whether noise replaces it (DDPM, flow) or drowns
    it (VE, EDM, whose own variance never stops growing).
    """
    require.between("converged", converged, 0, 1)
    steps = increments(process, unit_variance=True)
    if len(steps.u) < 3:
        return Areas(1.0, 1.0)
    (rate,) = torch.gradient(steps.variance)
    peak = int(rate.argmax())
    reached = int((steps.variance >= converged * steps.variance.max()).int().argmax())
    return Areas(float(steps.u[peak]), float(steps.u[max(peak, reached)]))


_NOTHING = 0.99
"""A convergence area that starts after this is negligible."""


def converges_from(process: NoiseProcess) -> float:
    """The unit time that SpeeD's tau=auto stands for, or an error if the process hardly converges."""
    border = areas(process).converges_from
    if border > _NOTHING:
        raise Unsupported(
            f"tau=auto: {process} converges at {border:.3f} of its time, so nothing would be drawn less "
            "often. Write the share of time where that should begin, such as tau=0.7."
        )
    return border

"""The increments of a process and SpeeD's three areas of time, beside the borders in SpeeD's own code."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepwell.core.errors import Unsupported
from stepwell.core.increments import CONVERGED, areas, increments
from stepwell.core.process import NoiseProcess

OFFICIAL_TAU = 700
"""The start of the convergence area in SpeeD's code: a fixed timestep for every schedule."""
OFFICIAL_FLAT = 1e-4
"""Its threshold for a flat noise level sqrt(1 - abar): a change of less than this per step."""


@dataclass(frozen=True)
class ProcessIncrements:
    """x_{t+1} - x_t given x0 between any two timesteps, at unit variance (Wang et al. 2024, Theorem 1)."""

    process: str
    timesteps: int | None
    u: tuple[float, ...]
    """[T - 1]: the borders between timesteps (thousandths if time is continuous)."""
    mean: tuple[float, ...]
    """[T - 1]: the factor on x0."""
    variance: tuple[float, ...]
    """[T - 1]: with independent noise in both, 2 - abar_t (1 + alpha_{t+1}) for DDPM."""
    accelerates_until: float
    """Unit time at which the variance grows fastest."""
    converges_from: float
    """Unit time at which the variance reaches the share `converged` of its maximum."""
    converged: float
    own_times: tuple[float, float]
    """The network's time input at the two borders."""
    official_converges_from: int | None
    """The timestep where convergence starts in SpeeD's code; None if the process has no such timestep."""
    official_first_flat: int | None
    """The timestep around which its code pairs early and late ones; None if time is continuous."""

    def timestep(self, u: float) -> int | None:
        """The first timestep after a border in unit time."""
        return None if self.timesteps is None else round(u * self.timesteps)


def process_increments(name: str, process: NoiseProcess, converged: float = CONVERGED) -> ProcessIncrements:
    """The increments and areas of any process."""
    count = process.timesteps
    if count is not None and count < 4:
        raise Unsupported(
            f"{name} has {count} timesteps, and the areas need at least 4: give timesteps=1000, for example."
        )
    steps, parts = increments(process, unit_variance=True), areas(process, converged)
    borders = torch.tensor([parts.accelerates_until, parts.converges_from], dtype=torch.float64)
    first, second = process.time(borders).tolist()
    return ProcessIncrements(
        process=name,
        timesteps=count,
        u=tuple(steps.u.tolist()),
        mean=tuple(steps.mean.tolist()),
        variance=tuple(steps.variance.tolist()),
        accelerates_until=parts.accelerates_until,
        converges_from=parts.converges_from,
        converged=converged,
        own_times=(first, second),
        official_converges_from=OFFICIAL_TAU if count is not None and count > OFFICIAL_TAU else None,
        official_first_flat=_first_flat(process),
    )


def _first_flat(process: NoiseProcess) -> int | None:
    """SpeeD's `meaningful_steps`: one past the first timestep with a slope below 1e-4; T if there is none."""
    if process.timesteps is None:
        return None
    level = torch.sigmoid(-process.log_snr(process.grid())).sqrt()
    flat = torch.gradient(level)[0] < OFFICIAL_FLAT
    return int(flat.int().argmax()) + 1 if bool(flat.any()) else process.timesteps

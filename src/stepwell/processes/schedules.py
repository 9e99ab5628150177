"""The betas [T] of the published schedules, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter

_DDPM = (1e-4, 0.02)
_LARGEST = 0.999
"""Cosine's cap (Nichol and Dhariwal 2021), and ours for linear schedules of very few timesteps."""


def linear(timesteps: int, beta_start: float | None = None, beta_end: float | None = None) -> Tensor:
    """DDPM's schedule, 1e-4 to 0.02 (Ho et al. 2020); rescaled so that any T destroys as much."""
    start, end = _range(timesteps, beta_start, beta_end, _DDPM)
    return torch.linspace(start, end, timesteps, dtype=torch.float64)


def quadratic(
    timesteps: int,
    beta_start: float | None = None,
    beta_end: float | None = None,
    published: tuple[float, float] = _DDPM,
) -> Tensor:
    """The square of a line from sqrt(1e-4) to sqrt(0.02) (DDIM's code); rescaled as linear is."""
    start, end = _range(timesteps, beta_start, beta_end, published)
    return torch.linspace(math.sqrt(start), math.sqrt(end), timesteps, dtype=torch.float64) ** 2


def scaled_linear(timesteps: int, beta_start: float | None = None, beta_end: float | None = None) -> Tensor:
    """Stable Diffusion's schedule: quadratic from 0.00085 to 0.012 (Rombach et al. 2022).

    LDM calls it linear; its CelebA-HQ model uses 0.0015 to 0.0195.
    """
    return quadratic(timesteps, beta_start, beta_end, (0.00085, 0.012))


def cosine(timesteps: int, offset: float = 0.008) -> Tensor:
    """Improved DDPM's schedule, betas capped at 0.999 (Nichol and Dhariwal 2021, Eq. 17)."""
    require.count("timesteps", timesteps, most=require.MOST_BINS)
    require.not_negative("offset", offset)
    s = torch.arange(timesteps + 1, dtype=torch.float64) / timesteps
    kept = torch.cos((s + offset) / (1 + offset) * math.pi / 2) ** 2
    return (1 - kept[1:] / kept[:-1]).clamp(max=_LARGEST)


def zero_terminal_snr(alphas_cumprod: Tensor) -> Tensor:
    """Shift and scale sqrt(abar) so that the last timestep is pure noise (Lin et al. 2024, Alg. 1)."""
    if len(alphas_cumprod) < 2:
        raise InvalidParameter("zero_terminal_snr needs at least 2 timesteps: one cannot be both ends.")
    root = alphas_cumprod.sqrt()
    first, last = root[0], root[-1]
    return ((root - last) * first / (first - last)) ** 2


def _range(
    timesteps: int, start: float | None, end: float | None, published: tuple[float, float]
) -> tuple[float, float]:
    """The first and the last beta: as chosen, or as published, scaled by 1000 / T (improved DDPM)."""
    require.count("timesteps", timesteps, most=require.MOST_BINS)
    betas = []
    for name, chosen, default in (("beta_start", start, published[0]), ("beta_end", end, published[1])):
        beta = min(default * (1000 / timesteps), _LARGEST) if chosen is None else chosen
        betas.append(require.positive(name, require.between(name, beta, 0, _LARGEST)))
    return betas[0], betas[1]


STRAIGHT: dict[str, Callable[[int, float | None, float | None], Tensor]] = {
    "linear": linear,
    "quadratic": quadratic,
    "scaled-linear": scaled_linear,
}
"""The schedules that two betas describe."""
PUBLISHED: dict[str, Callable[[int], Tensor]] = {
    "linear": linear,
    "quadratic": quadratic,
    "scaled-linear": scaled_linear,
    "cosine": cosine,
}
"""All schedules, as their papers have them: betas [T] for T timesteps."""

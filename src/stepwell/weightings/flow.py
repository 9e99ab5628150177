"""Weightings that trainers of flows state over sigma, the share of noise, on the network's own target.

Sigma is that of the noisy example, so a shift of the process is already in it. Their authors multiply the
loss of the velocity. Other processes are refused: converted to the eps loss, as weights of the SNR are, a
weight of 1 on the velocity is 25,000 at the end of DDPM's linear schedule, and nobody trains that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from stepwell.core import require
from stepwell.core.errors import Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample


@dataclass(frozen=True)
class Bsmntw:
    """A bell over sigma: exp(-2 (sigma - 1/2)^2) less its value at the ends, with mean 1 over sigma.

    NeMo Automodel and ai-toolkit have it as a table of T timesteps; this is the table as T grows.
    """

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        bell = torch.exp(-2 * (_share_of_noise("bsmntw", process, u) - 0.5).square())
        # Rounding could make the ends negative.
        return (bell - _AT_THE_ENDS).clamp(min=0) / (_MEAN_OF_THE_BELL - _AT_THE_ENDS)


_AT_THE_ENDS = math.exp(-0.5)
_MEAN_OF_THE_BELL = math.sqrt(math.pi / 2) * math.erf(math.sqrt(0.5))


@dataclass(frozen=True)
class LinearSigma:
    """1 + slope x sigma (NeMo Automodel, where the slope is the flow's shift)."""

    slope: float = 3.0

    def __post_init__(self) -> None:
        require.not_negative("slope", self.slope)

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        return 1 + self.slope * _share_of_noise("linear-sigma", process, u)


def _share_of_noise(name: str, process: NoiseProcess, u: PerExample) -> PerExample:
    """sigma [B] in [0, 1]."""
    if not process.interpolates:
        raise Unsupported(
            f"{name} is a function of a flow's share of noise, which {process} does not have: use it with "
            "process flow, or a weighting of the SNR (min-snr, p2, ...) here."
        )
    return process.scales(u)[1]

"""Where a solver stops on its way through a process in continuous time."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core.process import NoiseProcess
from stepwell.processes.flow import FlowProcess

_RHO = 7.0
_LARGEST_SIGMA = 80.0
"""Where a flow begins if its network predicts eps, which says nothing of x0 at the end without signal."""


def stops(process: NoiseProcess, steps: int) -> Tensor:
    """Unit times [steps] from noise to data, in float64; after the last one comes the data itself.

    Flows have evenly spaced times, which their own shift then moves (Esser et al. 2024); everything else the
    noise levels of EDM (Karras et al. 2022, Eq. 5) between the process's own ends.
    """
    ends = torch.tensor([1.0, 0.0], dtype=torch.float64)
    if isinstance(process, FlowProcess):
        first = ends[:1]
        if process.prediction == "eps":
            first = process.at_log_snr(-2 * torch.tensor([_LARGEST_SIGMA], dtype=torch.float64).log())
        even = first * torch.arange(steps, 0, -1, dtype=torch.float64) / steps
        if process.timesteps is None:
            return even
        # Timestep k of T has the share k / T of noise; the middle of its bin is never rounded into another.
        return ((even * process.timesteps + 0.5).floor().clamp(min=1) - 0.5) / process.timesteps
    most, least = torch.exp(-process.log_snr(ends) / 2) ** (1 / _RHO)
    sigmas = (most + torch.linspace(0, 1, steps, dtype=torch.float64) * (least - most)) ** _RHO
    return process.at_log_snr(-2 * sigmas.log()).clamp(0, 1)

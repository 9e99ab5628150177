"""The optimal network of Gaussian data N(mean, std^2) in closed form, at any real timestep.

Between timesteps log(sigma) is linear, as solvers that stop there have it. x = x0 + sigma eps in these
coordinates, E[x0 | x] = (std^2 x + sigma^2 mean) / (std^2 + sigma^2), and the ODE of the process moves x
along (x - mean) / sqrt(std^2 + sigma^2) = constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from stepwell.core.tick import stream_key
from stepwell.models.denoiser import Condition
from stepwell.processes.discrete import DiscreteProcess


class GaussianNetwork(nn.Module):
    """Classes have a mean each; the last one is that of no class."""

    label_dropout = 0.1

    def __init__(self, process: DiscreteProcess, std: float, means: Sequence[float] = (0.0,)) -> None:
        super().__init__()
        self.process, self.std, self.classes = process, std, len(means) - 1
        self.means = nn.Parameter(torch.tensor(means, dtype=torch.float64), requires_grad=False)
        self.calls: list[int] = []

    def forward(self, x: Tensor, time: Tensor, condition: Condition) -> Tensor:
        self.calls.append(len(x))
        sigma = sigma_at(self.process, time).reshape(-1, 1, 1, 1)
        a = (1 + sigma**2).rsqrt()
        s = sigma * a
        labels = condition.labels
        mean = (self.means[-1:] if labels is None else self.means[labels]).reshape(-1, 1, 1, 1)
        x0 = (self.std**2 * x / a + sigma**2 * mean) / (self.std**2 + sigma**2)
        eps = (x - a * x0) / s
        return {"eps": eps, "x0": x0, "v": a * eps - s * x0}[self.process.prediction]


def sigma_at(process: DiscreteProcess, time: Tensor) -> Tensor:
    """sqrt((1 - abar) / abar) at real timesteps, in float64."""
    kept = process.alphas_cumprod()
    table = 0.5 * (torch.log1p(-kept) - torch.log(kept))
    return torch.as_tensor(np.exp(np.interp(time.double().numpy(), np.arange(len(kept)), table.numpy())))


def unit_noise(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """The noise that images start from, in float64."""
    seeds = (stream_key(seed, "image", index) for index in range(count))
    return torch.stack(
        [torch.randn(shape, generator=torch.Generator().manual_seed(s)) for s in seeds]
    ).double()


def along_the_ode(x: Tensor, start: float, end: float, std: float, mean: float = 0.0) -> Tensor:
    """Where the exact solution takes x (in x0 + sigma eps) from one sigma to another."""
    return mean + (x - mean) * ((std**2 + end**2) / (std**2 + start**2)) ** 0.5

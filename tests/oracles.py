"""Closed forms for Gaussian data, x0 ~ N(0, std^2 I): the best network, what it loses, and exact averages.

x_u = a x0 + s eps and the target p x0 + q eps are jointly normal, so the best output is linear in x_u and
its error has one variance. Everything here is in float64 and per dimension.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stepwell import NoiseProcess
from stepwell.core.density import centres
from stepwell.core.tensors import per_example


def optimal_x0(process: NoiseProcess, xt: Tensor, u: Tensor, std: float) -> Tensor:
    """E[x0 | x_u]."""
    a, s = process.scales(u)
    return per_example(a * std**2 / (a**2 * std**2 + s**2), xt) * xt


def optimal_output(process: NoiseProcess, xt: Tensor, u: Tensor, std: float) -> Tensor:
    """E[target | x_u]: the optimal denoiser as the process's own target."""
    (a, s), (p, q) = process.scales(u), process.target_mix(u)
    return per_example((p * a * std**2 + q * s) / (a**2 * std**2 + s**2), xt) * xt


def optimal_loss(process: NoiseProcess, u: Tensor, std: float) -> Tensor:
    """[n]: the expected squared error of the optimal denoiser on the process's own target."""
    (a, s), (p, q) = process.scales(u), process.target_mix(u)
    return std**2 * (a * q - s * p) ** 2 / (a**2 * std**2 + s**2)


def optimal_eps_loss(process: NoiseProcess, u: Tensor, std: float) -> Tensor:
    """[n]: the expected squared error of the optimal denoiser on eps, whatever the process's target."""
    a, s = process.scales(u)
    return std**2 * a**2 / (a**2 * std**2 + s**2)


class OptimalDenoiser:
    """The optimal network as an objective calls it: it sees the scaled input and is told the time."""

    def __init__(self, process: NoiseProcess, std: float) -> None:
        self.process, self.std = process, std

    def __call__(self, input: Tensor, time: Tensor, condition: object = None) -> Tensor:
        u = self.process.unit_time(time).to(input.dtype)
        xt = input / per_example(self.process.input_scale(u), input)
        return optimal_output(self.process, xt, u, self.std)


def gaussian_nodes(std: float, count: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """x0, noise and probabilities [count^2] that average polynomials of both up to degree 2 count - 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / weights.sum()
    x0, noise = np.meshgrid(std * nodes, nodes)
    return (
        torch.tensor(x0.ravel()),
        torch.tensor(noise.ravel()),
        torch.tensor(np.outer(weights, weights).ravel()),
    )


def reference_times(process: NoiseProcess, count: int) -> tuple[Tensor, Tensor]:
    """Times [n] and the reference's mass on each: every timestep, or `count` bins of continuous time."""
    u = process.grid() if process.timesteps else centres(count)
    mass = process.reference.pdf(u)
    return u, mass / len(u)

"""The noise process: the only thing that turns unit time into a schedule's own time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from stepwell.core.density import Density, centres
from stepwell.core.tensors import PerExample, per_example


class Problem(NamedTuple):
    """One denoising task: what the network sees, what it is told, and what it must say."""

    input: Tensor
    """[B, ...]: what the network sees."""
    time: PerExample
    """[B]: what the network is told."""
    target: Tensor
    """[B, ...]: what the network must say."""
    xt: Tensor
    """[B, ...]: the noisy example."""


class NoiseProcess(ABC):
    """x_u = signal(u) x0 + noise(u) eps, for unit time u from 0 (data) to 1 (noise).

    The network's target is a linear mix of x0 and eps as well. These two lines are the whole algebra:
    recovering x0, converting a loss to the eps loss and adding noise are the same for every process.
    """

    timesteps: int | None
    """How many discrete timesteps there are; None if time is continuous."""
    shift: float
    """The timestep shift that is already inside this process; 1 is none."""
    reference: Density
    """The density over u that the objective is stated against."""

    @abstractmethod
    def scales(self, u: PerExample) -> tuple[PerExample, PerExample]:
        """signal(u) and noise(u)."""

    @abstractmethod
    def target_mix(self, u: PerExample) -> tuple[PerExample, PerExample]:
        """p and q of the network's target p x0 + q eps."""

    @abstractmethod
    def input_scale(self, u: PerExample) -> PerExample:
        """The factor on x_u before the network sees it."""

    @abstractmethod
    def time(self, u: PerExample) -> PerExample:
        """What the network is told: a timestep index, a flow time, EDM's c_noise."""

    @abstractmethod
    def unit_time(self, time: PerExample) -> PerExample:
        """The u of what the network is told; the middle of the bin if time is discrete."""

    @abstractmethod
    def log_snr_rate(self, u: PerExample) -> PerExample:
        """d log_snr / du (negative)."""

    @abstractmethod
    def at_log_snr(self, log_snr: Tensor) -> Tensor:
        """The u at a log-SNR; the nearest timestep if time is discrete."""

    @abstractmethod
    def bound_coefficient(self, u: PerExample, variance: str) -> PerExample:
        """c_t, the factor of the eps loss in the variational bound (Kim et al. 2025, Eq. 7)."""

    def grid(self) -> Tensor:
        """One u per timestep, or per thousandth of continuous time: [T]."""
        return centres(self.timesteps or 1000)

    def log_snr(self, u: PerExample) -> PerExample:
        """ln(signal^2 / noise^2); minus infinity where no signal is left."""
        signal, noise = self.scales(u)
        return 2 * (torch.log(signal) - torch.log(noise))

    def corrupt(self, x0: Tensor, noise: Tensor, u: PerExample) -> Problem:
        """The denoising task of x0 at time u with this noise, in the dtype of x0."""
        a, s = (per_example(scale, x0) for scale in self.scales(u))
        p, q = (per_example(part, x0) for part in self.target_mix(u))
        xt = (a * x0 + s * noise).to(x0.dtype)
        target = (p * x0 + q * noise).to(x0.dtype)
        seen = (per_example(self.input_scale(u), x0) * xt).to(x0.dtype)
        return Problem(seen, self.time(u), target, xt)

    def recover(self, output: Tensor, xt: Tensor, u: PerExample) -> Tensor:
        """x0 from the network's output; undefined where that says nothing about x0 (eps at zero SNR)."""
        a, s = (per_example(scale, xt) for scale in self.scales(u))
        p, q = (per_example(part, xt) for part in self.target_mix(u))
        return ((q * xt - s * output) / (a * q - s * p)).to(xt.dtype)

    def eps_factor(self, u: PerExample) -> PerExample:
        """eps loss / loss on the network's own target: 1 for eps, SNR for x0, SNR / (1 + SNR) for v."""
        a, s = self.scales(u)
        p, q = self.target_mix(u)
        # eps = (a target - p xt) / (a q - s p). For eps prediction that is target itself, also at a = 0.
        return torch.where(p == 0, 1.0, (a / (a * q - s * p)) ** 2)


def agree(one: NoiseProcess, other: NoiseProcess, *, told: bool = False) -> bool:
    """Whether both have the same noise and targets at all times; `told`: and show networks the same."""
    if one.timesteps != other.timesteps:
        return False
    u = torch.linspace(0.05, 0.95, 19)
    both = zip(_algebra(one, u, told), _algebra(other, u, told), strict=True)
    return all(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5) for ours, theirs in both)


def _algebra(process: NoiseProcess, u: Tensor, told: bool) -> tuple[Tensor, ...]:
    noise = (*process.scales(u), *process.target_mix(u))
    shown = (process.input_scale(u), process.time(u)) if told else ()
    return tuple(values.double() for values in (*noise, *shown))

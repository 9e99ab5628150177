"""The noise process: signal and noise at every unit time, and what follows from them for any process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from stepwell.core.density import Density, Uniform, centres
from stepwell.core.errors import Unsupported
from stepwell.core.prediction import MIXES
from stepwell.core.tensors import PerExample, per_example, precise

_THOUSAND = 1000
"""Bins of continuous time, wherever a table over time is needed."""
_RHO = 7.0
"""How EDM spaces its noise levels (Karras et al. 2022, Eq. 5)."""


class Problem(NamedTuple):
    """One denoising problem: the network's inputs, its target and the noisy example."""

    input: Tensor
    """[B, ...]: the network's input."""
    time: PerExample
    """[B]: the network's time input."""
    target: Tensor
    """[B, ...]: the target of the network's output."""
    xt: Tensor
    """[B, ...]: the noisy example."""


class NoiseProcess(ABC):
    """x_u = signal(u) x0 + noise(u) eps, for unit time u from 0 (data) to 1 (noise).

    The network's target is a linear mix of x0 and eps as well. These two lines are the whole algebra:
    recovering x0, converting a loss to the eps loss and adding noise are the same for every process.
    """

    timesteps: int | None = None
    """How many discrete timesteps there are; None if time is continuous."""
    shift: float = 1.0
    """The timestep shift that is already inside this process; 1 is none."""
    prediction: str
    """What the network predicts: a name of `core.prediction.MIXES`, or that of a target of its own."""
    reference: Density = Uniform()
    """The density over u that the objective is stated against."""
    solvers: tuple[str, ...] = ("heun", "euler", "ancestral", "predictor-corrector")
    """The solvers that can generate from it, the default first."""
    interpolates: bool = False
    """Whether solvers step along (1 - t) x0 + t eps, as flows do, rather than along x0 + sigma eps."""
    is_ddpm: bool = False
    """Whether it is DDPM's discrete chain: only that has bits per dimension, a learned variance and a
    scheduler of diffusers."""
    has_bound: bool = True
    """Whether its variational bound is known."""
    written: str = ""
    """Its name and settings, as NAME:key=value,..., or its scheduler; empty if it was made in code."""

    def __str__(self) -> str:
        return self.written or repr(self)

    @abstractmethod
    def scales(self, u: PerExample) -> tuple[PerExample, PerExample]:
        """signal(u) and noise(u)."""

    @abstractmethod
    def time(self, u: PerExample) -> PerExample:
        """The network's time input: a timestep index, a flow time, EDM's c_noise."""

    @abstractmethod
    def unit_time(self, time: PerExample) -> PerExample:
        """The u of a network's time input; the middle of the bin if time is discrete."""

    @abstractmethod
    def log_snr_rate(self, u: PerExample) -> PerExample:
        """d log_snr / du (negative)."""

    @abstractmethod
    def at_log_snr(self, log_snr: Tensor) -> Tensor:
        """The u at a log-SNR; the nearest timestep if time is discrete."""

    def target_mix(self, u: PerExample) -> tuple[PerExample, PerExample]:
        """p and q of the network's target p x0 + q eps."""
        return MIXES[self.prediction](*self.scales(u))

    def input_scale(self, u: PerExample) -> PerExample:
        """The factor on x_u before it enters the network."""
        return torch.ones_like(u)

    def grid(self) -> Tensor:
        """One u per timestep, or per thousandth of continuous time: [T]."""
        return centres(self.timesteps or _THOUSAND)

    def index(self, u: PerExample) -> PerExample:
        """t = floor(u T), as int64. In float64, since float32 rounds u T up across the border."""
        count = self.timesteps or _THOUSAND
        return (u.to(precise(u)) * count).long().clamp_(0, count - 1)

    def log_snr(self, u: PerExample) -> PerExample:
        """ln(signal^2 / noise^2); minus infinity where no signal is left."""
        signal, noise = self.scales(u)
        return 2 * (torch.log(signal) - torch.log(noise))

    def corrupt(self, x0: Tensor, noise: Tensor, u: PerExample) -> Problem:
        """The denoising problem of x0 at time u with this noise, in the dtype of x0."""
        a, s = (per_example(scale, x0) for scale in self.scales(u))
        p, q = (per_example(part, x0) for part in self.target_mix(u))
        xt = (a * x0 + s * noise).to(x0.dtype)
        target = (p * x0 + q * noise).to(x0.dtype)
        scaled = (per_example(self.input_scale(u), x0) * xt).to(x0.dtype)
        return Problem(scaled, self.time(u), target, xt)

    def recover(self, output: Tensor, xt: Tensor, u: PerExample) -> Tensor:
        """x0 from the network's output; undefined where that does not determine x0 (eps at zero SNR)."""
        a, s = (per_example(scale, xt) for scale in self.scales(u))
        p, q = (per_example(part, xt) for part in self.target_mix(u))
        return ((q * xt - s * output) / (a * q - s * p)).to(xt.dtype)

    def eps_factor(self, u: PerExample) -> PerExample:
        """eps loss / loss on the network's own target: 1 for eps, SNR for x0, SNR / (1 + SNR) for v."""
        a, s = self.scales(u)
        p, q = self.target_mix(u)
        # eps = (a target - p xt) / (a q - s p). For eps prediction that is target itself, also at a = 0.
        return torch.where(p == 0, 1.0, (a / (a * q - s * p)) ** 2)

    def bound_coefficient(self, u: PerExample, variance: str) -> PerExample:
        """c_t, the factor of the eps loss in the variational bound (Kim et al. 2025, Eq. 7).

        In continuous time -(d log_snr / du) / 2 per thousandth of time (Song et al. 2021b, Theorem 1): the
        limit of a discrete chain as T grows, whichever variance its reverse steps have.
        """
        if not self.has_bound:
            raise Unsupported(
                f"the variational bound with variance {variance!r} is a sum over DDPM's discrete chain, "
                f"which {self} does not have: use a weighting of the SNR (min-snr, p2, ...) or none."
            )
        return -self.log_snr_rate(u) / (2 * len(self.grid()))

    def alphas_cumprod(self) -> Tensor:
        """abar [T] of DDPM's chain, in float64."""
        raise Unsupported(
            f"{self} is not DDPM's discrete chain: use a discrete process (linear, cosine, quadratic, "
            "scaled-linear)."
        )

    def schedule(self) -> str | None:
        """The published schedule that its betas are, by name, however it was built; None: another one."""
        return None

    def betas(self) -> Tensor:
        """beta [T] of DDPM's chain, in float64."""
        kept = self.alphas_cumprod()
        return 1 - kept / torch.cat([kept.new_ones(1), kept[:-1]])

    def solver(self, name: str) -> str:
        """The solver of a recipe's `solver=`: `ddim`, its default, means the default of this process."""
        return self.require_solver(self.solvers[0] if name == "ddim" else name)

    def require_solver(self, name: str) -> str:
        """The name of a solver that can generate from this process, or an error that lists those that can."""
        if name not in self.solvers:
            raise Unsupported(f"solver={name} cannot generate from {self}: use {', '.join(self.solvers)}.")
        return name

    def solver_times(self, steps: int) -> Tensor:
        """Unit times [steps] from noise towards data, in float64: EDM's noise levels."""
        ends = torch.tensor([1.0, 0.0], dtype=torch.float64)
        most, least = torch.exp(-self.log_snr(ends) / 2) ** (1 / _RHO)
        sigmas = (most + torch.linspace(0, 1, steps, dtype=torch.float64) * (least - most)) ** _RHO
        return self.at_log_snr(-2 * sigmas.log()).clamp(0, 1)


def agree(one: NoiseProcess, other: NoiseProcess, *, inputs: bool = False) -> bool:
    """Whether both have the same noise and targets at all times; `inputs`: and the same network inputs."""
    if one.timesteps != other.timesteps:
        return False
    u = torch.linspace(0.05, 0.95, 19)
    both = zip(_values(one, u, inputs), _values(other, u, inputs), strict=True)
    return all(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5) for ours, theirs in both)


def _values(process: NoiseProcess, u: Tensor, inputs: bool) -> list[Tensor]:
    network = [process.input_scale(u), process.time(u)] if inputs else []
    return [value.double() for value in (*process.scales(u), *process.target_mix(u), *network)]

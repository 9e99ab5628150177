"""Weightings by formula: each is stated on the eps loss, and the process converts it to its own target.

So Min-SNR is right for eps, v, x0, flow and EDM. `none` is the exception: 1 on whatever the network predicts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import Unsupported
from stepwell.core.increments import converges_from
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import Lookup, PerExample, precise

_LEAST_SNR = 1e-9
"""Where a weight grows without bound as the signal vanishes, it stops here: zero SNR has a weight too."""


@dataclass(frozen=True)
class Unweighted:
    """1 on the process's own target: DDPM's simple loss, EDM's loss, flow matching's loss."""

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        return torch.ones_like(u)


@dataclass(frozen=True)
class MinSnr:
    """min(SNR, gamma) / SNR on eps (Hang et al. 2023)."""

    gamma: float = 5.0

    def __post_init__(self) -> None:
        require.positive("gamma", self.gamma)

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        weight = (self.gamma * torch.exp(-process.log_snr(u))).clamp(max=1)
        return weight * process.eps_factor(u)


@dataclass(frozen=True)
class SoftMinSnr:
    """gamma / (SNR + gamma) on eps (Crowson et al. 2024, HDiT)."""

    gamma: float = 5.0

    def __post_init__(self) -> None:
        require.positive("gamma", self.gamma)

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        weight = torch.sigmoid(math.log(self.gamma) - process.log_snr(u))
        return weight * process.eps_factor(u)


@dataclass(frozen=True)
class P2:
    """1 / (k + SNR)^gamma on eps (Choi et al. 2022); also the weighting of SpeeD's older version.

    The default is the authors' own experiments (gamma 1). Kim et al. print gamma 0, which is no weighting.
    """

    gamma: float = 1.0
    k: float = 1.0

    def __post_init__(self) -> None:
        require.not_negative("gamma", self.gamma)
        require.positive("k", self.k)

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        # (k + SNR)^-gamma through softplus: an infinite SNR gives 0, not infinity to a power.
        log_k = math.log(self.k)
        log_sum = torch.nn.functional.softplus(process.log_snr(u) - log_k) + log_k
        return torch.exp(-self.gamma * log_sum) * process.eps_factor(u)


@dataclass(frozen=True)
class Debiased:
    """1 / sqrt(SNR) on eps (Yu et al. 2024, Unmasking Bias)."""

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        log_snr = process.log_snr(u).clamp(min=math.log(_LEAST_SNR))
        return torch.exp(-0.5 * log_snr) * process.eps_factor(u)


@dataclass(frozen=True)
class Vlb:
    """c_t, the weight of the variational bound on eps (Ho et al. 2020; Kim et al. 2025, Eq. 7).

    `cap` bounds c_t; None is the bound itself. On the cosine schedule c_999 = 499.5 is 97 % of the sum,
    because beta is clipped there. `auto` is a cap of 1 on discrete chains, which touches only the last two
    timesteps of cosine, none of linear and quadratic, and the last one of zero-terminal-SNR ones; in
    continuous time no beta is clipped, and it is no cap: the weight of VP near the data belongs to the bound.
    """

    variance: str = "fixed-large"
    cap: float | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        require.one_of("variance", self.variance, ("fixed-large", "fixed-small", "fixed-large-clipped"))
        if self.cap is not None and self.cap != "auto":
            require.positive("cap", self.cap)

    def largest(self, process: NoiseProcess) -> float:
        """The cap on c_t for this process; infinity is none."""
        if self.cap == "auto":
            return math.inf if process.timesteps is None else 1.0
        return self.cap or math.inf

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        weight = process.bound_coefficient(u, self.variance)
        return weight.clamp(max=self.largest(process)) * process.eps_factor(u)


@dataclass(frozen=True)
class Likelihood:
    """-d log-SNR / du / 2 on eps: the bound in continuous time (Song et al. 2021b, g^2 / (2 noise^2)).

    `vlb` is its discrete form: T c_t comes to this as T grows. It is the bound where draws are uniform, as
    the reference of vp, ve and flow is; EDM's is not. It has no limit as the noise vanishes, and is held
    above `largest_snr`: at 1e6, where VP's published cut-off (t = 1e-5) lies, so that only a flow is touched.
    """

    largest_snr: float = 1e6

    def __post_init__(self) -> None:
        require.positive("largest_snr", self.largest_snr)

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        if process.timesteps is not None:
            raise Unsupported(
                f"likelihood is the bound in continuous time, and {process} counts its timesteps: use vlb "
                "with linear, cosine, ...; or flow without timesteps, vp, ve, edm."
            )
        data, noise = (
            process.at_log_snr(u.new_full((1,), math.log(snr))) for snr in (self.largest_snr, _LEAST_SNR)
        )
        held = torch.minimum(torch.maximum(u, data), noise)
        return process.log_snr_rate(held) / -2 * process.eps_factor(u)


@dataclass(frozen=True)
class Speed:
    """SpeeD's change-aware weight on eps (Wang et al. 2024, current code): more where noise grows faster.

    The growth of 1 - abar, scaled to [1 - ceiling, ceiling] before `tau`; 1 after it. The class default of
    the official code, ceiling 5, makes weights negative and is refused here. `tau=1` and ceiling 0.8 is
    their "theory" weighting. 1 - abar is the noise's share of the variance, so any process has it.
    """

    ceiling: float = 0.6
    tau: float | Literal["auto"] = 0.7

    def __post_init__(self) -> None:
        require.between("ceiling", self.ceiling, 0.5, 1)
        if self.tau != "auto":
            require.between("tau", self.tau, 0, 1)

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        table = _speed_table(process, self.ceiling, self.tau)
        count = len(table.values)
        index = (u.to(precise(u)) * count).long().clamp_(0, count - 1)
        return table.at(index, u.dtype) * process.eps_factor(u)


@lru_cache(maxsize=16)
def _speed_table(process: NoiseProcess, ceiling: float, tau: float | Literal["auto"]) -> Lookup:
    grid = process.grid()
    share = torch.sigmoid(-process.log_snr(grid))
    growth = _gradient(share)
    spread = (growth - growth.min()) / (growth.max() - growth.min()).clamp(min=1e-12)
    border = converges_from(process) if tau == "auto" else tau
    return Lookup(torch.where(grid < border, (1 - ceiling) + (2 * ceiling - 1) * spread, 1.0))


def _gradient(values: Tensor) -> Tensor:
    return torch.gradient(values)[0] if len(values) > 1 else torch.zeros_like(values)

"""Variance-preserving diffusion in T discrete timesteps (DDPM and its family)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.prediction import prediction_name
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import Lookup, PerExample, precise
from stepwell.processes import schedules

PREDICTIONS = ("eps", "v", "x0")
_LEAST_ALPHA = 1e-12
"""Keeps the bound's coefficient finite at a zero-SNR timestep, where Eq. 7 divides by zero."""


class DiscreteProcess(NoiseProcess):
    """x_t = sqrt(abar_t) x0 + sqrt(1 - abar_t) eps for t = floor(u T)."""

    is_ddpm = True
    solvers = ("ddim", "ddpm", "heun", "dpm-solver++", "unipc")

    def __init__(self, alphas_cumprod: Tensor, prediction: str = "eps") -> None:
        kept = torch.as_tensor(alphas_cumprod).detach().to("cpu", torch.float64)
        if kept.dim() != 1 or len(kept) == 0:
            raise InvalidParameter(f"alphas_cumprod must be a list of values, not shape {tuple(kept.shape)}.")
        if not ((kept >= 0) & (kept < 1)).all() or (kept.diff() >= 0).any():
            raise InvalidParameter("alphas_cumprod must fall strictly and stay in [0, 1).")
        self.timesteps = len(kept)
        self.prediction = prediction_name(prediction, PREDICTIONS)
        self._signal, self._noise = Lookup(kept.sqrt()), Lookup((1 - kept).sqrt())
        log_snr = torch.log(kept) - torch.log1p(-kept)
        self._log_snr = Lookup(log_snr)
        self._rate = Lookup(_slope(log_snr))
        self._factor = Lookup(NoiseProcess.eps_factor(self, self.grid()))
        self._bound = {name: Lookup(bound(kept)) for name, bound in COEFFICIENTS.items()}

    def __repr__(self) -> str:
        return f"DiscreteProcess(timesteps={self.timesteps}, prediction={self.prediction!r})"

    def alphas_cumprod(self) -> Tensor:
        """abar [T], in float64."""
        return self._signal.values**2

    def schedule(self) -> str | None:
        for name, betas in schedules.PUBLISHED.items():
            kept = torch.cumprod(1 - betas(len(self._log_snr.values)), dim=0)
            # Schedulers keep float32, which knows 1 - abar_0 to three digits.
            if torch.allclose(self._log_snr.values, torch.logit(kept), rtol=0, atol=1e-2):
                return name
        return None

    def scales(self, u: PerExample) -> tuple[PerExample, PerExample]:
        index = self.index(u)
        return self._signal.at(index, u.dtype), self._noise.at(index, u.dtype)

    def time(self, u: PerExample) -> PerExample:
        return self.index(u)

    def unit_time(self, time: PerExample) -> PerExample:
        return self._centre(time).to(torch.get_default_dtype())

    def _centre(self, index: Tensor) -> Tensor:
        return (index.to(precise(index)) + 0.5) / len(self._signal.values)

    def log_snr(self, u: PerExample) -> PerExample:
        return self._log_snr.at(self.index(u), u.dtype)

    def log_snr_rate(self, u: PerExample) -> PerExample:
        return self._rate.at(self.index(u), u.dtype)

    def eps_factor(self, u: PerExample) -> PerExample:
        return self._factor.at(self.index(u), u.dtype)

    def at_log_snr(self, log_snr: Tensor) -> Tensor:
        table = self._log_snr.on(log_snr.device, log_snr.dtype)
        middle = (table[1:] + table[:-1]) / 2
        # searchsorted wants a rising table; log-SNR falls.
        return self._centre(torch.searchsorted(-middle, -log_snr.contiguous())).to(log_snr)

    def bound_coefficient(self, u: PerExample, variance: str) -> PerExample:
        require.one_of("variance", variance, tuple(COEFFICIENTS))
        return self._bound[variance].at(self.index(u), u.dtype)


def _slope(values: Tensor) -> Tensor:
    """d values / du over equal bins; 0 if there is one bin."""
    if len(values) < 2:
        return torch.zeros_like(values)
    (slope,) = torch.gradient(values)
    return slope * len(values)


def _fixed_large(kept: Tensor) -> Tensor:
    """beta / (2 alpha (1 - abar)): the reverse variance is beta_t."""
    alpha, beta = _alpha_beta(kept)
    return beta / (2 * alpha * (1 - kept))


def _fixed_small(kept: Tensor) -> Tensor:
    """(SNR_{t-1} / SNR_t - 1) / 2: the reverse variance is the posterior's.

    The posterior of t = 0 has no variance and its term would be infinite; as in every DDPM code, t = 0
    borrows the variance of t = 1 (linear, T = 1000: c_0 = 0.916987).
    """
    alpha, beta = _alpha_beta(kept)
    before = torch.cat([kept.new_ones(1), kept[:-1]])
    posterior = beta * (1 - before) / (1 - kept)
    posterior[0] = posterior[1] if len(kept) > 1 else beta[0]
    return beta**2 / (2 * posterior * alpha * (1 - kept))


def _fixed_large_clipped(kept: Tensor) -> Tensor:
    """fixed-large, but t = 0 borrows the posterior's variance of t = 1, as Kim et al.'s code measures it."""
    coefficient = _fixed_large(kept)
    coefficient[0] = _fixed_small(kept)[0]
    return coefficient


def _alpha_beta(kept: Tensor) -> tuple[Tensor, Tensor]:
    before = torch.cat([kept.new_ones(1), kept[:-1]])
    alpha = kept / before
    return alpha.clamp(min=_LEAST_ALPHA), 1 - alpha


BOUNDS: dict[str, Callable[[Tensor], Tensor]] = {
    "fixed-large": _fixed_large,
    "fixed-small": _fixed_small,
}
"""The variances of the reverse step, and c_t [T] under each (Kim et al. 2025, Eq. 7)."""
COEFFICIENTS = {**BOUNDS, "fixed-large-clipped": _fixed_large_clipped}
"""c_t that can be asked for: one more is no bound, but what a published code has."""


def straight(
    schedule: str,
    timesteps: int = 1000,
    prediction: str = "eps",
    beta_start: float | None = None,
    beta_end: float | None = None,
    zero_terminal_snr: bool = False,
) -> DiscreteProcess:
    """The schedules that are a line in beta or in its root: linear, quadratic, scaled-linear."""
    betas = schedules.STRAIGHT[schedule](timesteps, beta_start, beta_end)
    return _of_betas(betas, prediction, zero_terminal_snr)


def cosine(
    timesteps: int = 1000,
    prediction: str = "eps",
    offset: float = 0.008,
    zero_terminal_snr: bool = False,
) -> DiscreteProcess:
    """Improved DDPM's cosine schedule (Nichol and Dhariwal 2021)."""
    return _of_betas(schedules.cosine(timesteps, offset), prediction, zero_terminal_snr)


def _of_betas(betas: Tensor, prediction: str, zero_snr: bool) -> DiscreteProcess:
    kept = torch.cumprod(1 - betas, dim=0)
    return DiscreteProcess(schedules.zero_terminal_snr(kept) if zero_snr else kept, prediction)

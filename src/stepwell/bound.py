"""The variational bound of DDPM's discrete chain, term by term (Ho et al. 2020, Eq. 5).

-ln p(x0) <= decoder_nll at t = 0, plus step_kl at every t from 1 to T - 1, plus prior_kl. Every term is in
nats per example [B], summed over the example's dimensions, in float64 where the device has it.

The reverse step is q's posterior around the x0 that the network's output stands for, so each KL is a constant
plus a factor times |x0 - predicted x0|^2. For eps prediction that is c_t |eps - output|^2 (Eq. 12).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import Lookup, PerExample, per_example, precise
from stepwell.processes.discrete import BOUNDS

VARIANCES = tuple(BOUNDS)
"""Variances of the reverse step: fixed-large is beta_t, fixed-small is the posterior's."""
BIN_WIDTH = 2 / 255
"""Between neighbours of the 256 levels of 8-bit data in [-1, 1]."""
_OUTERMOST = 1 - BIN_WIDTH / 4
"""Beyond it, either way, a value is on an edge level, whose bin has no outer border."""


class _Chain(NamedTuple):
    """Terms of every KL, one entry per timestep."""

    constant: Lookup
    """The KL per dimension of a perfect prediction: from the two variances alone."""
    factor: Lookup
    """On |x0 - predicted x0|^2."""
    log_variance: Lookup
    """The reverse step's."""
    log_beta: Lookup


def step_kl(
    process: NoiseProcess,
    x0: Tensor,
    xt: Tensor,
    output: Tensor,
    u: PerExample,
    variance: str = "fixed-large",
    *,
    clip: bool = False,
) -> PerExample:
    """KL(q(x_{t-1} | x_t, x0) || p(x_{t-1} | x_t)) in nats per example, at the t of u.

    At t = 0, where q has no variance, both borrow the posterior's of t = 1, as in every DDPM code; the bound
    has `decoder_nll` there instead. `clip` keeps the predicted x0 in [-1, 1], as DDPM evaluates.
    """
    chain, index, dtype = _chain(process, variance), process.index(u), precise(x0)
    error = x0.to(dtype) - predicted_x0(process, xt, output, u, clip=clip)
    squared = error.square().reshape(len(x0), -1)
    return chain.constant.at(index, dtype) * squared.shape[1] + chain.factor.at(index, dtype) * squared.sum(1)


def decoder_nll(
    process: NoiseProcess, x0: Tensor, xt: Tensor, output: Tensor, *, clip: bool = False
) -> PerExample:
    """-ln p(x0 | x_t at t = 0) of 8-bit data in nats per example: a normal over 256 bins (Ho et al., Eq. 13).

    Its variance is the posterior's of t = 1, whichever the later steps have.
    """
    u = torch.zeros(len(x0), dtype=precise(x0), device=x0.device)
    mean = predicted_x0(process, xt, output, u, clip=clip)
    log_variance = _chain(process, "fixed-small").log_variance.at(process.index(u), mean.dtype)
    nll = discretised_nll(x0.to(mean.dtype), mean, per_example(log_variance, mean))
    return nll.reshape(len(x0), -1).sum(1)


def learned_variance_bound(
    process: NoiseProcess,
    x0: Tensor,
    xt: Tensor,
    output: Tensor,
    fraction: Tensor,
    u: PerExample,
    *,
    clip: bool = False,
) -> PerExample:
    """The bound's term at the t of u with a learned variance, in nats per example.

    The log-variance lies between the posterior's and beta's, by `fraction` in [-1, 1] (Nichol and Dhariwal
    2021, Eq. 15). The decoder of t = 0 has it too, between the posterior's variance of t = 1 and beta_0, as
    their code. For training, give `output` detached: the term is to teach the variance, not the mean.
    """
    dtype, index = precise(x0), process.index(u)
    small = _chain(process, "fixed-small")
    low, high = (per_example(one.at(index, dtype), x0) for one in (small.log_variance, small.log_beta))
    log_variance = low + (fraction.to(dtype) + 1) / 2 * (high - low)
    mean = predicted_x0(process, xt, output, u, clip=clip)
    error = (x0.to(dtype) - mean).square()
    # fixed-small's factor is pull^2 / (2 posterior variance): the KL to any other variance follows from it.
    pulled = 2 * per_example(small.factor.at(index, dtype), x0) * error
    wider = log_variance - low
    kl = (wider + torch.exp(-wider) * (1 + pulled) - 1) / 2
    nll = discretised_nll(x0.to(dtype), mean, log_variance)
    return torch.where(per_example(index == 0, x0), nll, kl).reshape(len(x0), -1).sum(1)


def prior_kl(process: NoiseProcess, x0: Tensor) -> PerExample:
    """KL(q(x_T | x0) || N(0, I)) in nats per example: the signal that is left at the end."""
    dtype = precise(x0)
    kept = float(process.scales(process.grid()[-1:])[0]) ** 2
    left = kept * x0.to(dtype).square().reshape(len(x0), -1)
    return (left - kept - math.log1p(-kept)).sum(1) / 2


def predicted_x0(
    process: NoiseProcess, xt: Tensor, output: Tensor, u: PerExample, *, clip: bool = False
) -> Tensor:
    """The x0 that an output stands for, in float64: cosine's last signal, 5e-5, divides the rounding."""
    dtype = precise(xt)
    x0 = process.recover(output.to(dtype), xt.to(dtype), u.to(dtype))
    return x0.clamp(-1, 1) if clip else x0


def discretised_nll(x0: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """-ln of the normal mass in the bin of each x0 [...]: 256 levels, the two edge bins open."""
    scale = torch.exp(-log_variance / 2)
    lower = torch.where(x0 < -_OUTERMOST, -math.inf, (x0 - mean - BIN_WIDTH / 2) * scale)
    upper = torch.where(x0 > _OUTERMOST, math.inf, (x0 - mean + BIN_WIDTH / 2) * scale)
    return -_log_mass(lower, upper)


def _log_mass(lower: Tensor, upper: Tensor) -> Tensor:
    """ln(Phi(upper) - Phi(lower)), mirrored into the lower tail, where nothing rounds to 1."""
    mirrored = lower + upper > 0
    low, high = torch.where(mirrored, -upper, lower), torch.where(mirrored, -lower, upper)
    most: Tensor = torch.special.log_ndtr(high)
    return most + torch.log(-torch.expm1(torch.special.log_ndtr(low) - most))


@lru_cache(maxsize=16)
def _chain(process: NoiseProcess, variance: str) -> _Chain:
    require.one_of("variance", variance, VARIANCES)
    kept, lost = process.alphas_cumprod(), process.scales(process.grid())[1] ** 2
    before = torch.cat([kept.new_ones(1), kept[:-1]])
    beta = (before - kept) / before
    # ln of posterior variance / beta, that is of (1 - abar_{t-1}) / (1 - abar_t), which nears 1 at the end.
    narrower = torch.zeros_like(kept)
    narrower[1:] = torch.log1p((kept[1:] - before[1:]) / lost[1:])
    posterior = torch.log(beta) + narrower
    large = variance == "fixed-large"
    reverse = torch.log(beta) if large else posterior.clone()
    reverse[0] = posterior[1] if len(kept) > 1 else posterior[0]
    ratio = narrower if large else torch.zeros_like(kept)
    pull = before.sqrt() * beta / lost
    return _Chain(
        constant=Lookup((torch.expm1(ratio) - ratio) / 2),
        factor=Lookup(pull**2 * torch.exp(-reverse) / 2),
        log_variance=Lookup(reverse),
        log_beta=Lookup(torch.log(beta)),
    )

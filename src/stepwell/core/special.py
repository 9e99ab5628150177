"""Special functions that torch lacks."""

from __future__ import annotations

import torch
from torch import Tensor

_TERMS = 300
_TINY = 1e-300


def beta_cdf(x: Tensor, a: float, b: float) -> Tensor:
    """The regularised incomplete beta function I_x(a, b), for x in [0, 1] and float64.

    Lentz's continued fraction (DLMF 8.17.22); its mirror image is used where it converges faster.
    """
    x = x.to(torch.float64)
    mirrored = x > (a + 1) / (a + b + 2)
    low = _fraction(torch.where(mirrored, 0.5, x), a, b)
    high = 1 - _fraction(torch.where(mirrored, 1 - x, 0.5), b, a)
    return torch.where(mirrored, high, low).clamp(0, 1)


def log_beta(a: float, b: float) -> float:
    """ln B(a, b)."""
    terms = torch.lgamma(torch.tensor([a, b, a + b], dtype=torch.float64))
    return float(terms[0] + terms[1] - terms[2])


def _fraction(x: Tensor, a: float, b: float) -> Tensor:
    front = torch.exp(a * torch.log(x) + b * torch.log1p(-x) - log_beta(a, b)) / a
    c = torch.ones_like(x)
    d = 1 / (1 - (a + b) / (a + 1) * x)
    value = d.clone()
    for m in range(1, _TERMS):
        even = m * (b - m) / ((a + 2 * m - 1) * (a + 2 * m)) * x
        odd = -(a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1)) * x
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value = value * c * d
    return front * value


def _away_from_zero(x: Tensor) -> Tensor:
    return torch.where(x.abs() < _TINY, _TINY, x)

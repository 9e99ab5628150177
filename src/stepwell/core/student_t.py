"""Student's t distribution, for confidence intervals without a statistics library."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=256)
def t_quantile(freedom: int, inside: float = 0.95) -> float:
    """The x with P(|t| < x) = `inside`, by bisection."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_inside(middle, freedom) < inside else (low, middle)
    return high


def t_inside(size: float, freedom: int) -> float:
    """P(|t| < size) for whole degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(size / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return (angle + sine * total) * 2 / math.pi if odd else sine * total

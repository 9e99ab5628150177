"""Checks of parameters: each returns the value, or raises an error that says what would work."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from stepwell.core.errors import InvalidParameter, quoted, unknown

MOST = 2**53
"""The largest of the whole numbers that a float holds exactly."""
MOST_BINS = 100_000
"""Timesteps, or bins of time: tables of this length are made and searched at every draw."""
MOST_STRATA = 2_000
"""Parts of time that are measured apart, each with gradients or losses of its own."""


def is_finite(value: int | float) -> bool:
    """Whether a float can hold a number: neither NaN nor infinity, nor a whole number beyond 1.8e308."""
    return abs(value) <= sys.float_info.max if isinstance(value, int) else math.isfinite(value)


def finite(name: str, value: object) -> float:
    """`value` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_finite(value):
        raise InvalidParameter(f"{name} must be a finite number, not {quoted(value)}.")
    return float(value)


def boolean(name: str, value: object) -> bool:
    """`value`, if it is true or false: a text such as no would count as true."""
    if not isinstance(value, bool):
        raise InvalidParameter(f"{name} must be true or false, not {quoted(value)}.")
    return value


def positive(name: str, value: object, most: float = math.inf) -> float:
    """`value` as a float above 0, and at most `most`."""
    number = finite(name, value)
    if not 0 < number <= most:
        limit = "" if most == math.inf else f" and at most {most:g}"
        raise InvalidParameter(f"{name} must be above 0{limit}, not {quoted(value)}.")
    return number


def not_negative(name: str, value: object) -> float:
    """`value` as a float of at least 0."""
    number = finite(name, value)
    if number < 0:
        raise InvalidParameter(f"{name} must be 0 or more, not {quoted(value)}.")
    return number


def between(name: str, value: object, low: float, high: float) -> float:
    """`value` as a float in [low, high]."""
    number = finite(name, value)
    if not low <= number <= high:
        raise InvalidParameter(f"{name} must lie between {low:g} and {high:g}, not {quoted(value)}.")
    return number


def count(name: str, value: object, least: int = 1, most: int = MOST) -> int:
    """`value` as an integer of at least `least`, and at most `most`: where a number becomes memory."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidParameter(f"{name} must be a whole number of at least {least}, not {quoted(value)}.")
    if value > most:
        raise InvalidParameter(f"{name} must be at most {most:,}, not {quoted(value)}.")
    return value


def one_of(name: str, value: object, choices: Sequence[str]) -> str:
    """`value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise unknown(name, value, choices)
    return value


def unit_range(name: str, low: object, high: object) -> tuple[float, float]:
    """A range of unit time that is not empty."""
    start, end = finite(name, low), finite(name, high)
    if not 0 <= start < end <= 1:
        raise InvalidParameter(
            f"{name} must be a range inside [0, 1] that is not empty, not [{quoted(low)}, {quoted(high)}]."
        )
    return start, end

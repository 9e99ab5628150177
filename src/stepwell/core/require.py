"""Checks of parameters: each returns the value, or raises an error that says what would work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepwell.core.errors import InvalidParameter, unknown


def finite(name: str, value: object) -> float:
    """`value` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidParameter(f"{name} must be a finite number, not {value!r}.")
    return float(value)


def positive(name: str, value: object) -> float:
    """`value` as a float above 0."""
    number = finite(name, value)
    if number <= 0:
        raise InvalidParameter(f"{name} must be above 0, not {value!r}.")
    return number


def not_negative(name: str, value: object) -> float:
    """`value` as a float of at least 0."""
    number = finite(name, value)
    if number < 0:
        raise InvalidParameter(f"{name} must be 0 or more, not {value!r}.")
    return number


def between(name: str, value: object, low: float, high: float) -> float:
    """`value` as a float in [low, high]."""
    number = finite(name, value)
    if not low <= number <= high:
        raise InvalidParameter(f"{name} must lie between {low:g} and {high:g}, not {value!r}.")
    return number


def count(name: str, value: object, least: int = 1) -> int:
    """`value` as an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidParameter(f"{name} must be a whole number of at least {least}, not {value!r}.")
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
            f"{name} must be a range inside [0, 1] that is not empty, not [{low!r}, {high!r}]."
        )
    return start, end

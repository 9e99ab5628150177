"""Classes as a recipe names them."""

from __future__ import annotations

import ast

from stepwell.core.errors import InvalidParameter


def parse_classes(text: str) -> tuple[int, ...]:
    """The class numbers in `5,7,9`, sorted, without repeats; empty for an empty text."""
    try:
        value = ast.literal_eval(text) if text.strip() else ()
    except (ValueError, SyntaxError):
        value = None
    numbers = (value,) if type(value) is int else value
    if not isinstance(numbers, tuple | list) or not all(type(n) is int and n >= 0 for n in numbers):
        raise InvalidParameter(f"only_classes must be numbers of classes such as 5,7,9, not {text!r}.")
    return tuple(sorted(set(numbers)))

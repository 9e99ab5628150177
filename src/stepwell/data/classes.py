"""Classes as a recipe names them."""

from __future__ import annotations

from stepwell.core.errors import InvalidParameter, quoted


def parse_classes(text: str) -> tuple[int, ...]:
    """The class numbers in `5,7,9`, sorted, without repeats; empty for an empty text."""
    words = text.strip().strip("[]()").strip().removesuffix(",").split(",") if text.strip() else []
    if not all(word.strip().isdecimal() and len(word.strip()) < 10 for word in words):
        raise InvalidParameter(f"only_classes must be numbers of classes such as 5,7,9, not {quoted(text)}.")
    return tuple(sorted({int(word) for word in words}))

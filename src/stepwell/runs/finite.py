"""Numbers that JSON can carry."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: both are written as null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Names that moved: they still work for one release, with a warning that says where they are now."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def deprecated(module: str, name: str, homes: Mapping[str, str]) -> Any:
    """For a module's `__getattr__`: the object that `homes` has under an old name, as its full new name."""
    if name not in homes:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home, _, new = homes[name].rpartition(".")
    warnings.warn(
        f"{module}.{name} is deprecated: use {homes[name]}.",
        DeprecationWarning,
        stacklevel=3,
    )
    return getattr(import_module(home), new)

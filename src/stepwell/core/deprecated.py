"""Names that moved: they still work for one release, with a warning that says where they are now."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
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


def keep_old_methods(cls: type, names: Mapping[str, str]) -> None:
    """For `__init_subclass__`: methods defined under an old name get the new one, and the other way round."""
    for old, new in names.items():
        if new in vars(cls):
            setattr(cls, old, _warning(cls, old, new, vars(cls)[new]))
        elif old in vars(cls):
            message = f"{cls.__name__}.{old}: this method is called {new} now. Please rename it."
            warnings.warn(message, DeprecationWarning, stacklevel=4)
            setattr(cls, new, vars(cls)[old])


def _warning(cls: type, old: str, new: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        message = f"{cls.__name__}.{old} is deprecated: use {cls.__name__}.{new}."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return method(*arguments, **options)

    return call

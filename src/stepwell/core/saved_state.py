"""Reads the parts of a saved state: one that is missing, or of another shape, is named before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor

from stepwell.core.errors import StateMismatch
from stepwell.core.tensors import State


def part(state: Any, name: object, owner: object) -> State:
    """The state under a name."""
    found = _found(state, name, owner)
    if not isinstance(found, dict):
        _refuse(owner, f"{_kind(found)} as its {name!r}")
    return found


def tensor(
    state: Any, name: object, owner: object, shape: tuple[int | None, ...] | None = None, finite: bool = True
) -> Tensor:
    """A copy of the tensor under a name, of this shape (None: any size, or any shape) and `finite`."""
    found = _found(state, name, owner)
    if not isinstance(found, Tensor):
        _refuse(owner, f"{_kind(found)} as its {name!r}")
    if shape is not None and not _fits(found, shape):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        _refuse(owner, f"{list(found.shape)} numbers as its {name!r}, where [{wanted}] are needed")
    if finite and not bool(found.isfinite().all()):
        _refuse(owner, f"numbers that are not finite in its {name!r}")
    return found.clone()


def count(state: Any, name: object, owner: object) -> int:
    """The whole number, 0 or more, under a name."""
    found = _found(state, name, owner)
    if type(found) is not int or found < 0:
        _refuse(owner, f"{_kind(found)} as its {name!r}, which is a count")
    return found


def _fits(found: Tensor, shape: tuple[int | None, ...]) -> bool:
    return len(shape) == found.dim() and all(
        size in (None, own) for size, own in zip(shape, found.shape, strict=True)
    )


def _found(state: Any, name: object, owner: object) -> Any:
    if not isinstance(state, Mapping) or name not in state:
        _refuse(owner, f"no {name!r}" if isinstance(state, Mapping) else _kind(state))
    return state[name]


def _kind(value: object) -> str:
    return repr(value) if value is None or isinstance(value, (int, float)) else f"a {type(value).__name__}"


def _refuse(owner: object, what: str) -> NoReturn:
    raise StateMismatch(
        f"the state that was given to {owner} has {what}: load what its own state_dict returned, or start "
        "without a state."
    )

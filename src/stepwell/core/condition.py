"""Conditions of a batch (labels, prompts): a tensor, or a dataclass, mapping or tuple of such, or None."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter


def leaves(condition: Any) -> list[Tensor]:
    """The tensors of a condition, in a fixed order."""
    return list(_leaves(condition))


def _leaves(condition: Any) -> Iterator[Tensor]:
    if isinstance(condition, Tensor):
        yield condition
    elif condition is not None:
        for part in _parts(condition):
            yield from _leaves(part)


def _parts(condition: Any) -> list[Any]:
    if is_dataclass(condition) and not isinstance(condition, type):
        return [getattr(condition, field.name) for field in fields(condition)]
    if isinstance(condition, Mapping):
        return list(condition.values())
    if isinstance(condition, (tuple, list)):
        return list(condition)
    raise InvalidParameter(
        "a condition must be a tensor with one entry per example, or a dataclass, mapping or tuple of such, "
        f"not {type(condition).__name__}."
    )


def rebuilt(like: Any, tensors: Sequence[Tensor]) -> Any:
    """A condition with the structure of `like` and other tensors."""
    return _rebuilt(like, iter(tensors))


def _rebuilt(like: Any, tensors: Iterator[Tensor]) -> Any:
    if like is None:
        return None
    if isinstance(like, Tensor):
        return next(tensors)
    parts = [_rebuilt(part, tensors) for part in _parts(like)]
    if is_dataclass(like) and not isinstance(like, type):
        return replace(like, **dict(zip([field.name for field in fields(like)], parts, strict=True)))
    if isinstance(like, Mapping):
        return dict(zip(like, parts, strict=True))
    return tuple(parts)


def select(condition: Any, rows: slice | Tensor) -> Any:
    """The conditions of some examples."""
    return rebuilt(condition, [leaf[rows] for leaf in leaves(condition)])


def joined(conditions: Sequence[Any]) -> Any:
    """The conditions of several batches, concatenated."""
    columns = zip(*(leaves(condition) for condition in conditions), strict=True)
    return rebuilt(conditions[0], [torch.cat(column) for column in columns])

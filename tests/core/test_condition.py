"""Conditions of any structure, taken apart and put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from stepwell.core.condition import leaves, rebuilt, select
from stepwell.core.errors import InvalidParameter


@dataclass(frozen=True)
class Prompt:
    """What a text-to-image model is told."""

    text: Tensor
    mask: Tensor
    sizes: Any = None


def _rows(start: int, count: int = 4) -> Tensor:
    return torch.arange(start, start + count)


CONDITIONS: dict[str, tuple[Any, list[Tensor]]] = {
    "none": (None, []),
    "tensor": (_rows(0), [_rows(0)]),
    "dataclass": (Prompt(_rows(0), _rows(10)), [_rows(0), _rows(10)]),
    "mapping": ({"label": _rows(0), "crop": None}, [_rows(0)]),
    "tuple": ((_rows(0), _rows(10)), [_rows(0), _rows(10)]),
    "nested": (
        Prompt(_rows(0), _rows(10), {"old": _rows(20), "new": (_rows(30),)}),
        [_rows(0), _rows(10), _rows(20), _rows(30)],
    ),
}


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", CONDITIONS)
def test_leaves_are_the_tensors_in_order(name: str) -> None:
    condition, wanted = CONDITIONS[name]
    assert _same(leaves(condition), wanted)


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_rebuilt_condition_has_the_structure_and_the_new_tensors(name: str) -> None:
    condition, wanted = CONDITIONS[name]
    made = rebuilt(condition, [leaf + 100 for leaf in wanted])
    assert type(made) is type(condition)
    assert _same(leaves(made), [leaf + 100 for leaf in wanted])
    assert _same(leaves(condition), wanted), "the old one stays as it is"


@pytest.mark.parametrize("rows", [slice(1, 3), slice(-2, None), torch.tensor([3, 0])], ids=str)
@pytest.mark.parametrize("name", CONDITIONS)
def test_selecting_takes_the_rows_of_every_leaf(name: str, rows: slice | Tensor) -> None:
    condition, wanted = CONDITIONS[name]
    assert _same(leaves(select(condition, rows)), [leaf[rows] for leaf in wanted])


@pytest.mark.parametrize("condition", ["a text", 3, ["a", "b"], {"prompt": "a text"}, Prompt])
def test_what_has_no_entry_per_example_is_refused(condition: object) -> None:
    with pytest.raises(InvalidParameter, match="one entry per example, or a dataclass"):
        select(condition, slice(0, 1))

"""Some classes of a data set, and of no other one an image."""

from __future__ import annotations

import pytest
import torch

from stepwell.core.errors import InvalidParameter
from stepwell.data.load import load, parse_classes
from stepwell.data.source import BadData


def test_the_parts_of_the_classes_make_up_the_whole() -> None:
    whole = load("fashion16", labels=True)
    shoes, clothes = (load("fashion16", only_classes=these) for these in ("5,7,8,9", "0,1,2,3,4,6"))
    assert len(shoes.train) + len(clothes.train) == len(whole.train)
    assert len(shoes.held_out) + len(clothes.held_out) == len(whole.held_out)
    assert whole.train.labels is not None
    rows = torch.isin(whole.train.labels, torch.tensor([5, 7, 8, 9])).nonzero().flatten()
    few = torch.arange(9)
    assert torch.equal(shoes.train.examples(few), whole.train.examples(rows[few]))
    assert any("classes 5, 7, 8, 9" in note for note in shoes.notes)


def test_labels_are_there_only_if_they_were_asked_for() -> None:
    bare, labelled = (load("fashion16", labels=labels, only_classes="3") for labels in (False, True))
    assert bare.train.labels is None
    assert bare.train.classes == 0
    assert labelled.train.labels is not None
    assert labelled.train.labels.unique().tolist() == [3]
    assert labelled.train.classes == 10, "a class keeps its number"


@pytest.mark.parametrize("given", ["5,7,9", "(9, 7, 5)", "[5, 7, 9, 9]"])
def test_ways_to_write_them(given: str) -> None:
    assert parse_classes(given) == (5, 7, 9)


@pytest.mark.parametrize("given", ["shoes", "1.5", "-1,2", "True", "{1: 2}"])
def test_what_is_no_class(given: str) -> None:
    with pytest.raises(InvalidParameter, match="numbers of classes"):
        parse_classes(given)


def test_classes_that_are_not_there() -> None:
    with pytest.raises(BadData, match="classes 0 to 9, not 10"):
        load("fashion16", only_classes="1,10")

"""Some classes of a data set: what a base is trained on, and what it is then fine-tuned on."""

from __future__ import annotations

import ast
from typing import cast

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.data.source import BadData, DataSet, ExampleSource, ImageSource, Part


def parsed(given: str) -> tuple[int, ...]:
    """The classes in `5,7,9`, in order and once each; none if nothing is given."""
    try:
        found = ast.literal_eval(given) if given.strip() else ()
    except (ValueError, SyntaxError):
        found = None
    numbers = (found,) if type(found) is int else found
    if not isinstance(numbers, tuple | list) or not all(type(n) is int and n >= 0 for n in numbers):
        raise InvalidParameter(f"only_classes must be numbers of classes such as 5,7,9, not {given!r}.")
    return tuple(sorted(set(numbers)))


def restrict(data: DataSet, classes: tuple[int, ...], *, labels: bool) -> DataSet:
    """The images of these classes, in training and held out; `labels` tells whether theirs are kept."""
    if data.latents is not None:
        raise BadData(
            f"{data.train.name} has latents, and only_classes chooses images: encode the images that are "
            "wanted into a cache of their own."
        )
    lost = [number for number in classes if number >= data.train.classes]
    if lost:
        raise BadData(
            f"{data.train.name} has the classes 0 to {data.train.classes - 1}, not {lost[0]}: change "
            "only_classes."
        )
    train, held_out = (_part(source, classes, labels) for source in (data.train, data.held_out))
    listed = ", ".join(map(str, classes))
    note = f"only {len(train):,} of {len(data.train):,} images, those of the classes {listed}"
    return DataSet(train, held_out, (*data.notes, note))


def _part(source: ExampleSource, classes: tuple[int, ...], labels: bool) -> Part:
    assert source.labels is not None, "they were asked for"
    rows: Tensor = torch.isin(source.labels, torch.tensor(classes)).nonzero().flatten()
    if not len(rows):
        raise BadData(f"{source.name} has no image of the classes {', '.join(map(str, classes))}.")
    found = Part(cast(ImageSource, source), rows, source.name)
    if not labels:
        found.labels, found.classes = None, 0
    return found

"""A Hugging Face dataset by name: hub:NAME."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from PIL import Image

from stepwell.core.errors import Unsupported
from stepwell.data.pictures import Readable, scan
from stepwell.data.source import BadData, DataSet, Options, split

_HELD_OUT = ("test", "validation", "valid")
_IMAGES = ("image", "img", "images", "picture")
_LABELS = ("label", "labels", "fine_label", "class", "y")


class Rows:
    """The image column of a dataset's split."""

    things = "rows"

    def __init__(self, table: Any, name: str) -> None:
        self.name = name
        self.column = _column(name, table.features, "Image", _IMAGES)
        self._rows = table.select_columns([self.column])

    def __len__(self) -> int:
        return len(self._rows)

    def open(self, row: int) -> Image.Image:
        picture = self._rows[row][self.column]
        if not isinstance(picture, Image.Image):
            raise BadData(f"of type {type(picture).__name__}")
        return picture

    def title(self, row: int) -> str:
        return f"row {row}"


def read(name: str, options: Options) -> DataSet:
    """The split `train` (or the first), with `test` or `validation` held out, else a tenth of it."""
    if not name:
        raise BadData("'hub:' needs the name of a dataset: write hub:uoft-cs/cifar10.")
    tables = _tables(name)
    train_split = "train" if "train" in tables else next(iter(tables))
    held_split = next((key for key in _HELD_OUT if key in tables and key != train_split), None)
    flips, notes = options.flip_or(True)
    title, table = f"hub:{name}", tables[train_split]
    pictures = Rows(table, title)
    images = scan(pictures, options)
    labels, classes = _labels(title, table, images) if options.labels else (None, 0)
    notes = (f"images from column {pictures.column!r} of split {train_split!r}", *images.notes, *notes)
    if held_split is None:
        return split(images.source(labels, classes, flips), notes)
    held_table = tables[held_split]
    channels, size, _ = images.shape
    held = scan(Rows(held_table, f"{title} held out"), replace(options, size=size, channels=channels))
    held_labels, held_classes = _labels(title, held_table, held) if options.labels else (None, 0)
    classes = max(classes, held_classes)
    return DataSet(
        images.source(labels, classes, flips), held.source(held_labels, classes, flips), (*notes, *held.notes)
    )


def _tables(name: str) -> Mapping[str, Any]:
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise Unsupported(
            f"hub:{name} needs Hugging Face's library, which is not installed: pip install datasets."
        ) from None
    try:
        tables = dict(datasets.load_dataset(name))
    except Exception as error:
        raise BadData(
            f"hub:{name} could not be loaded ({type(error).__name__}: {error}): check its exact name on "
            "https://huggingface.co/datasets, or give a folder."
        ) from error
    if not tables:
        raise BadData(f"hub:{name} has no split: give another dataset.")
    return tables


def _column(name: str, features: Mapping[str, object], kind: str, names: tuple[str, ...]) -> str:
    """The column of this type (by a usual name if there are several), else one with a usual name."""
    typed = [key for key, feature in features.items() if type(feature).__name__ == kind]
    usual = [key for key in names if key in features]
    guesses = [key for key in usual if key in typed] + typed + usual
    if not guesses:
        raise BadData(
            f"{name} has no column of type {kind} and none called {', '.join(names)}, only "
            f"{', '.join(features)}: "
            + ("train without labels." if kind == "ClassLabel" else "give a dataset of images.")
        )
    return guesses[0]


def _labels(name: str, table: Any, images: Readable) -> tuple[list[int], int]:
    """The labels of the readable rows, and the number of classes."""
    column = _column(name, table.features, "ClassLabel", _LABELS)
    every = list(table[column])
    labels = [every[row] for row in images.rows]
    wrong = next((label for label in labels if isinstance(label, bool) or not isinstance(label, int)), None)
    if wrong is not None:
        raise BadData(
            f"{name}: column {column!r} holds {wrong!r}, and must hold whole numbers: train without labels."
        )
    return labels, getattr(table.features[column], "num_classes", None) or max(labels) + 1

"""Hugging Face datasets, through a stand-in for their library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from stepwell.core.errors import Unsupported
from stepwell.data.load import load
from stepwell.data.source import BadData


class Image:
    """As datasets.Image."""


class Value:
    """As datasets.Value."""


class ClassLabel:
    """As datasets.ClassLabel."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes


class Table:
    """As datasets.Dataset, as far as it is used."""

    def __init__(self, features: dict[str, object], columns: dict[str, list[Any]]) -> None:
        self.features = features
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        return {name: column[key] for name, column in self.columns.items()}

    def select_columns(self, names: list[str]) -> Table:
        return Table({n: self.features[n] for n in names}, {n: self.columns[n] for n in names})


def pictures(count: int, size: int = 8) -> list[Pillow.Image]:
    rng = np.random.default_rng(count)
    return [Pillow.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)) for _ in range(count)]


def table(count: int, image: str = "image", label: str = "label", labels: list[Any] | None = None) -> Table:
    features: dict[str, object] = {"id": Value(), image: Image(), label: ClassLabel(5)}
    columns: dict[str, list[Any]] = {
        "id": list(range(count)),
        image: pictures(count),
        label: labels or [row % 3 for row in range(count)],
    }
    return Table(features, columns)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def provide(**splits: Table) -> None:
        def load_dataset(name: str) -> dict[str, Table]:
            if name != "some/thing":
                raise FileNotFoundError(f"no dataset called {name}")
            return splits

        module = ModuleType("datasets")
        module.load_dataset = load_dataset  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "datasets", module)

    return provide


def test_train_and_test_split(hub: Callable[..., None]) -> None:
    hub(train=table(20), test=table(6), extra=table(2))
    data = load("hub:some/thing", labels=True)
    assert (len(data.train), len(data.held_out)) == (20, 6)
    assert data.train.shape == data.held_out.shape == (3, 8, 8)
    assert data.train.classes == data.held_out.classes == 5
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [row % 3 for row in range(20)]
    assert data.train.flips
    stored = np.stack([np.asarray(picture) for picture in pictures(20)]).transpose(0, 3, 1, 2)
    assert (data.train.fetch(torch.arange(20)).numpy() == stored).all()


def test_one_split_is_divided(hub: Callable[..., None]) -> None:
    hub(everything=table(20, image="img", label="fine_label"))
    data = load("hub:some/thing")
    assert (len(data.train), len(data.held_out)) == (18, 2)
    assert data.train.labels is None
    assert data.notes[0] == "images from column 'img' of split 'everything'"


def test_size_memory_and_validation(hub: Callable[..., None]) -> None:
    hub(train=table(20), validation=table(6))
    base = load("hub:some/thing", size=4, channels=1)
    disk = load("hub:some/thing", size=4, channels=1, memory_bytes=0)
    assert base.held_out.shape == (1, 4, 4)
    rows = torch.arange(6)
    assert torch.equal(base.held_out.fetch(rows), disk.held_out.fetch(rows))


def test_columns_are_guessed_by_type_then_by_name(hub: Callable[..., None]) -> None:
    both = table(10)
    both.features = {"mask": Image(), **both.features}
    both.columns["mask"] = pictures(10, 4)
    hub(train=both)
    assert load("hub:some/thing").train.shape == (3, 8, 8)
    named = table(10)
    named.features = {"image": Value(), "label": Value(), "id": Value()}
    hub(train=named)
    assert load("hub:some/thing", labels=True).train.classes == 3


def test_rows_that_are_no_images_are_skipped(hub: Callable[..., None]) -> None:
    broken = table(10)
    broken.columns["image"][4] = None
    hub(train=broken)
    data = load("hub:some/thing", labels=True)
    assert len(data.train) + len(data.held_out) == 9
    assert "skipped 1 of 10 rows" in data.notes[1]
    assert "row 4 (of type NoneType)" in data.notes[1]
    parts = [part.labels for part in (data.train, data.held_out)]
    assert torch.cat([part for part in parts if part is not None]).bincount().tolist() == [4, 2, 3]


def test_what_cannot_work_says_why(hub: Callable[..., None]) -> None:
    hub(train=Table({"text": Value()}, {"text": ["a", "b"]}))
    with pytest.raises(BadData, match=r"no column of type Image and none called image, img.*only text: give"):
        load("hub:some/thing")
    hub(train=Table({"image": Image()}, {"image": pictures(4)}))
    with pytest.raises(BadData, match=r"no column of type ClassLabel.*only image: train without labels"):
        load("hub:some/thing", labels=True)
    hub(train=table(4, labels=["a", "b", "c", "d"]))
    with pytest.raises(BadData, match="column 'label' holds 'a', and must hold whole numbers"):
        load("hub:some/thing", labels=True)
    hub(train=table(4), test=table(4, labels=[-1] * 4))
    with pytest.raises(BadData, match="labels run from -1 to -1"):
        load("hub:some/thing", labels=True)
    with pytest.raises(BadData, match=r"hub:some/thign could not be loaded \(FileNotFoundError: no dataset"):
        load("hub:some/thign")
    with pytest.raises(BadData, match="needs the name of a dataset: write hub:"):
        load("hub:")


def test_without_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Unsupported, match=r"hub:some/thing needs .* pip install datasets"):
        load("hub:some/thing")

"""CIFAR-10's batch files, and pickles that want to be more than that."""

from __future__ import annotations

import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from stepwell.data.load import load
from stepwell.data.source import BadData

NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


class Python2(pickle._Pickler):
    """Writes bytes as the str of Python 2, as in the files that Toronto hands out."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def save_str(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)  # type: ignore[attr-defined]
        self.memoize(value)  # type: ignore[attr-defined]

    dispatch[bytes] = save_str


def content(seed: int, count: int = 8) -> dict[bytes, Any]:
    rng = np.random.default_rng(seed)
    return {
        b"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8),
        b"labels": rng.integers(0, 10, count).tolist(),
        b"batch_label": b"training batch",
        b"filenames": [b"a.png"] * count,
    }


def pickled(value: object, protocol: int | str) -> bytes:
    if protocol != "python2":
        return pickle.dumps(value, protocol=int(protocol))
    stream = io.BytesIO()
    Python2(stream, protocol=2).dump(value)
    return stream.getvalue()


def write(folder: Path, protocol: int | str = "python2") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(NAMES):
        (folder / name).write_bytes(pickled(content(seed), protocol))
    (folder / "batches.meta").write_bytes(b"not read")
    return folder


@pytest.mark.parametrize("protocol", ["python2", 2, 3, 4])
def test_batches_are_read_to_the_pixel(tmp_path: Path, protocol: int | str) -> None:
    data = load(str(write(tmp_path, protocol)), labels=True)
    assert (len(data.train), len(data.held_out)) == (40, 8)
    assert data.train.shape == data.held_out.shape == (3, 32, 32)
    assert data.train.classes == 10
    assert data.train.flips
    third = content(2)
    assert (data.train.fetch(torch.arange(16, 24)).numpy() == third[b"data"].reshape(8, 3, 32, 32)).all()
    assert data.train.labels is not None
    assert data.train.labels[16:24].tolist() == third[b"labels"]
    assert data.held_out.labels is not None
    assert data.held_out.labels.tolist() == content(5)[b"labels"]


def test_the_folder_that_the_archive_makes_is_found(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-batches-py")
    data = load(str(tmp_path), size=16, channels=1, flips=False)
    assert data.train.shape == (1, 16, 16)
    assert data.train.labels is None
    assert not data.train.flips


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "data_batch_4").unlink()
    (tmp_path / "test_batch").unlink()
    with pytest.raises(BadData, match="but not data_batch_4, test_batch: unpack"):
        load(str(tmp_path))


class Evil:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.mkdir, eval, getattr, pickle.loads])
def test_a_pickle_that_runs_code_is_refused_before_it_does(
    tmp_path: Path, function: object, protocol: int
) -> None:
    write(tmp_path)
    trap = tmp_path / "trap"
    argument = str(trap) if function is os.mkdir else f"__import__('os').mkdir({str(trap)!r})"
    stored = {**content(0), b"more": Evil(function, argument)}
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(stored, protocol=protocol))
    with pytest.raises(
        BadData, match=r"data_batch_1 asks for \w+\.\w+, which .*: nothing of it was executed"
    ):
        load(str(tmp_path))
    assert not trap.exists()


def altered(**changes: object) -> bytes:
    return pickle.dumps({**content(0), **{key.encode(): value for key, value in changes.items()}}, protocol=2)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"text",
        altered()[:5000],
        pickle.dumps([1, 2], protocol=2),
        pickle.dumps({b"data": 3}, protocol=2),
        altered(data=np.zeros((8, 3072), np.float32)),
        altered(data=np.zeros((8, 3071), np.uint8)),
        altered(data=np.array([None] * 8)),
        altered(data=np.asfortranarray(np.zeros((8, 3072), np.uint8))),
        altered(labels=["a"] * 8),
    ],
)
def test_damaged_batches_are_named(tmp_path: Path, stored: bytes) -> None:
    (write(tmp_path) / "data_batch_2").write_bytes(stored)
    with pytest.raises(BadData, match="data_batch_2 is not a batch file of CIFAR-10, or is damaged"):
        load(str(tmp_path))


def test_labels_must_match(tmp_path: Path) -> None:
    (write(tmp_path) / "data_batch_2").write_bytes(altered(labels=[1]))
    with pytest.raises(BadData, match="has 8 images and 1 labels"):
        load(str(tmp_path))

"""Arrays in .npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stepwell.data.load import load
from stepwell.data.source import BadData, DataSet


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(len(shape)).integers(0, 256, shape, dtype=np.uint8)


def saved(path: Path, **arrays: object) -> str:
    np.savez(path / "a.npz", **arrays)  # type: ignore[arg-type]
    return str(path / "a.npz")


def images(data: DataSet) -> NDArray[np.uint8]:
    return data.train.fetch(torch.arange(len(data.train))).numpy()


@pytest.mark.parametrize("key", ["images", "x", "arr_0"])
def test_the_usual_names(tmp_path: Path, key: str) -> None:
    stored = noise(20, 8, 8)
    data = load(saved(tmp_path, **{key: stored}))
    assert (len(data.train), len(data.held_out)) == (18, 2)
    assert data.train.shape == (1, 8, 8)
    assert not data.train.flips
    assert load(saved(tmp_path, **{key: stored}), flips=True).train.flips


@pytest.mark.parametrize(
    ("shape", "to_first"),
    [
        ((6, 8, 8), lambda a: a[:, None]),
        ((6, 8, 10, 1), lambda a: a.transpose(0, 3, 1, 2)),
        ((6, 8, 10, 3), lambda a: a.transpose(0, 3, 1, 2)),
        ((6, 1, 8, 10), lambda a: a),
        ((6, 3, 8, 10), lambda a: a),
    ],
)
def test_channels_first_last_or_absent(tmp_path: Path, shape: tuple[int, ...], to_first: object) -> None:
    stored = noise(*shape)
    data = load(saved(tmp_path, images=stored, held_out_images=stored[:2]))
    assert (images(data) == to_first(stored)).all()  # type: ignore[operator]
    assert len(data.held_out) == 2
    assert data.notes == ()


def test_labels_and_held_out(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        x=noise(6, 8, 8),
        y=np.array([[0], [1], [2], [0], [1], [2]], np.uint8),
        held_out_images=noise(2, 8, 8),
        held_out_labels=np.array([1, 3]),
    )
    assert load(path).train.labels is None
    data = load(path, labels=True)
    assert data.train.labels is not None
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.train.labels.dtype == torch.int64
    assert data.held_out.labels is not None
    assert data.held_out.labels.tolist() == [1, 3]
    assert data.train.classes == data.held_out.classes == 4


def test_size_and_channels_are_applied(tmp_path: Path) -> None:
    data = load(saved(tmp_path, images=np.full((4, 12, 20, 3), 77, np.uint8)), size=6, channels=1)
    assert data.train.shape == data.held_out.shape == (1, 6, 6)
    assert (images(data) == 77).all()
    assert load(saved(tmp_path, images=noise(4, 12, 20)), channels=3).train.shape == (3, 12, 20)


@pytest.mark.parametrize(
    ("arrays", "labels", "message"),
    [
        (
            {"images": np.zeros((4, 8, 8), np.float32)},
            False,
            r"images holds float32, and must hold uint8.*\* 255",
        ),
        (
            {"images": np.zeros((4, 8), np.uint8)},
            False,
            r"images has shape \[4, 8\], and must be \[N, H, W\]",
        ),
        ({"images": np.zeros((4, 8, 8, 4), np.uint8)}, False, r"shape \[4, 8, 8, 4\].*with C 1 or 3"),
        ({"images": np.zeros((0, 8, 8), np.uint8)}, False, "it holds no image"),
        (
            {"pictures": np.zeros((4, 8, 8), np.uint8)},
            False,
            "no array called images, x or arr_0, only pictures",
        ),
        ({"images": noise(4, 8, 8)}, True, "no array called labels or y: store one, or train without"),
        ({"images": noise(4, 8, 8), "y": np.zeros(4)}, True, "y holds float64, and must hold whole numbers"),
        ({"images": noise(4, 8, 8), "y": np.zeros(3, int)}, True, r"4 images need labels of shape \[4\]"),
        ({"images": noise(4, 8, 8), "y": np.array([0, 1, -1, 0])}, True, "labels run from -1 to 1"),
        ({"images": noise(4, 8, 8), "y": np.zeros((4, 2), int)}, True, r"not \[4, 2\]"),
        (
            {"images": noise(4, 8, 8), "held_out_images": noise(2, 6, 6)},
            False,
            r"images are \(1, 8, 8\) and held_out_images \(1, 6, 6\)",
        ),
        (
            {"images": noise(4, 8, 8), "y": np.zeros(4, int), "held_out_images": noise(2, 8, 8)},
            True,
            "no array called held_out_labels",
        ),
        ({"images": np.array([{"a": 1}, None])}, False, "not a plain array"),
    ],
)
def test_arrays_that_cannot_work(
    tmp_path: Path, arrays: dict[str, object], labels: bool, message: str
) -> None:
    with pytest.raises(BadData, match=message):
        load(saved(tmp_path, **arrays), labels=labels)


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    path = tmp_path / "b.npz"
    whole = Path(saved(tmp_path, images=noise(40, 8, 8))).read_bytes()
    np.save(tmp_path / "c.npy", noise(4, 8, 8))
    for content in (b"", b"text", whole[:500], (tmp_path / "c.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(BadData, match=r"b.npz is not an .npz file"):
            load(str(path))

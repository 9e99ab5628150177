"""Images in a numpy .npz file: your own, and fashion16, which ships with the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stepwell.core.errors import quoted
from stepwell.data.arrays import keys_of, read_arrays
from stepwell.data.pictures import refit
from stepwell.data.source import BadData, DataSet, InMemory, Options, split

if TYPE_CHECKING:
    from numpy.typing import NDArray

IMAGE_KEYS, _LABELS = ("images", "x", "arr_0"), ("labels", "y")
_HELD_IMAGES, _HELD_LABELS = ("held_out_images",), ("held_out_labels",)


def read(path: Path, options: Options, name: str | None = None) -> DataSet:
    """Images under `images`, `x` or `arr_0`, labels under `labels` or `y`, optionally `held_out_*`.

    Not mirrored by default: nothing is known about what an array shows.
    """
    name = name or str(path)
    arrays = _arrays(path, name)
    images = _images(name, arrays, IMAGE_KEYS, options)
    held_images = _images(name, arrays, _HELD_IMAGES, options) if _HELD_IMAGES[0] in arrays else None
    labels = _labels(name, arrays, _LABELS) if options.labels else None
    held_labels = _labels(name, arrays, _HELD_LABELS) if options.labels and held_images is not None else None
    columns = [column for column in (labels, held_labels) if column is not None and len(column)]
    classes = max((int(column.max()) + 1 for column in columns), default=0)
    flips, notes = options.flip_or(False)
    train = InMemory(images, name=name, labels=labels, classes=classes, flips=flips)
    if held_images is None:
        return split(train, notes)
    held_out = InMemory(
        held_images, name=f"{name} held out", labels=held_labels, classes=classes, flips=flips
    )
    if train.shape != held_out.shape:
        raise BadData(
            f"{name}: images are {train.shape} and held_out_images {held_out.shape} (channels, height, "
            "width): store one shape, or write size=N channels=C."
        )
    return DataSet(train, held_out, notes)


FASHION16_CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
"""In the order of their numbers."""


def read_fashion16(options: Options) -> DataSet:
    """Fashion-MNIST at 16x16 (Xiao et al. 2017; MIT licence, in the file): 12,000 images, 2,000 held out.

    Made by `benchmarks/make_fashion16.py`. Not mirrored by default: all shoes point to the left.
    """
    with as_file(files("stepwell.data") / "fashion16.npz") as path:
        data = read(path, options, name="fashion16")
    return replace(data, class_names=FASHION16_CLASSES) if options.labels else data


def _arrays(path: Path, name: str) -> dict[str, NDArray[Any]]:
    arrays = read_arrays(path, (*IMAGE_KEYS, *_LABELS, *_HELD_IMAGES, *_HELD_LABELS))
    if not any(key in arrays for key in IMAGE_KEYS):
        raise no_images(name, keys_of(path))
    return arrays


def no_images(name: str, keys: Sequence[str]) -> BadData:
    """The error for an .npz without images."""
    found = quoted(", ".join(keys) or "nothing").strip("'")
    return BadData(
        f"{name} has no array called images, x or arr_0, only {found}: write it with "
        "np.savez(path, images=...)."
    )


def _first(arrays: Mapping[str, NDArray[Any]], keys: tuple[str, ...]) -> tuple[str, NDArray[Any]] | None:
    return next(((key, arrays[key]) for key in keys if key in arrays), None)


def _images(name: str, arrays: Mapping[str, NDArray[Any]], keys: tuple[str, ...], options: Options) -> Tensor:
    entry = _first(arrays, keys)
    assert entry is not None
    key, array = entry
    if array.dtype != np.uint8:
        raise BadData(
            f"{name}: {key} holds {array.dtype}, and must hold uint8 from 0 to 255. For floats in [0, 1] "
            "store np.round(images * 255).astype(np.uint8)."
        )
    return refit(channels_first(f"{name}: {key}", array), options.size, options.channels)


def channels_first(name: str, array: NDArray[Any]) -> Tensor:
    """[N, H, W], [N, H, W, C] or [N, C, H, W] as [N, C, H, W]; channels last if ambiguous."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    elif array.ndim != 4 or array.shape[1] not in (1, 3):
        raise BadData(
            f"{name} has shape {list(array.shape)}, and must be [N, H, W], [N, H, W, C] or [N, C, H, W] "
            "with C 1 or 3."
        )
    if not array.size:
        raise BadData(f"{name} has shape {list(array.shape)}: it holds no image.")
    return torch.from_numpy(np.ascontiguousarray(array))


def _labels(name: str, arrays: Mapping[str, NDArray[Any]], keys: tuple[str, ...]) -> Tensor:
    entry = _first(arrays, keys)
    if entry is None:
        raise BadData(f"{name} has no array called {' or '.join(keys)}: store one, or train without labels.")
    key, array = entry
    if array.dtype.kind not in "iu":
        raise BadData(f"{name}: {key} holds {array.dtype}, and must hold whole numbers, one class an image.")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return torch.from_numpy(array.astype(np.int64))

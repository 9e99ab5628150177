"""Sets of images to compare, read by row: a folder, an .npz, or any data that training reads."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import Unsupported
from stepwell.core.reading import object_of, place
from stepwell.data.arrays import keys_of, read_array
from stepwell.data.folder import Files
from stepwell.data.load import kind_of, not_found
from stepwell.data.load import load as load_data
from stepwell.data.npz import IMAGE_KEYS, channels_first, no_images
from stepwell.data.pictures import as_pixels, attempt_all, refit, skipped
from stepwell.data.source import BadData, ImageSource
from stepwell.runs.directory import RECIPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
_DIGEST_ROWS = 1000


class ImageSet(Protocol):
    """Images by row."""

    @property
    def name(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]:
        """What to tell about them."""
        ...

    def __len__(self) -> int: ...
    def fetch(self, rows: list[int]) -> Tensor:
        """These images, as uint8 [B, C, H, W]."""
        ...

    def digest(self) -> str:
        """A digest of all images."""
        ...


def open_images(spec: str | Path, channels: int, size: int | None = None) -> ImageSet:
    """A folder (read with this many channels), an .npz, or the training images of a run or other data."""
    path = place(spec)
    if (path / RECIPE).is_file():
        recipe = object_of(path / RECIPE)
        data, only = recipe.get("data"), recipe.get("only_classes", "")
        if not isinstance(data, str) or not isinstance(only, str):
            raise BadData(f"{path / RECIPE} does not name the data of a run: give the images themselves.")
        options = {name: recipe.get(name) for name in ("size", "channels")}
        return _training_images(data, only_classes=only, **options)
    match kind_of(str(spec)):
        case "folder":
            return FolderOfImages(path, channels, size)
        case "npz":
            return ArrayOfImages(path, size)
        case None:
            raise not_found(str(spec))
        case _:
            return _training_images(str(spec), size=size)


def _training_images(spec: str, **options: Any) -> ImageSet:
    data = load_data(spec, **options)
    if data.latents is not None:
        raise Unsupported(f"{spec} has latents: give the images that were encoded instead.")
    return SourceOfImages(cast(ImageSource, data.train))


def chosen_rows(available: int, count: int | None) -> list[int]:
    """`count` evenly spaced rows, because folders are often sorted by class; None: all."""
    if count is None or count >= available:
        return list(range(available))
    return [row * available // require.count("count", count) for row in range(count)]


class FolderOfImages:
    """The readable images below a folder, ordered by name; all of one size unless `size` is given."""

    def __init__(self, root: Path, channels: int = 3, size: int | None = None) -> None:
        self.name = str(root)
        self._files, self._root = Files(root), root
        self._files.paths = [path for path in self._files.paths if path.lower().endswith(_ENDINGS)]
        self._channels, self._size = channels, size
        if not len(self._files):
            raise BadData(f"{root} has no images below it ({', '.join(_ENDINGS[:4])}, ...).")
        # All are decoded, as before a training: a damaged one is skipped here, and not found hours later.
        shapes, unreadable = attempt_all(self._files, lambda _, row: self._pixels(row).shape[1:])
        self.notes = skipped(self._files, unreadable)
        if not shapes:
            raise BadData(f"{root} has no image that can be read: {self.notes[0]}.")
        self._rows = list(shapes)
        self._refuse_mixed_sizes(shapes)

    def __len__(self) -> int:
        return len(self._rows)

    def fetch(self, rows: list[int]) -> Tensor:
        return torch.stack([self._pixels(self._rows[row]) for row in rows])

    def digest(self) -> str:
        total = hashlib.blake2b(digest_size=16)
        for row in self._rows:
            contents = (self._root / self._files.paths[row]).read_bytes()
            total.update(len(contents).to_bytes(8, "little") + contents)
        return f"{total.hexdigest()} size={self._size} channels={self._channels}"

    def _pixels(self, file: int) -> Tensor:
        with self._files.open(file) as picture:
            return as_pixels(picture, self._size, self._channels)

    def _refuse_mixed_sizes(self, shapes: dict[int, torch.Size]) -> None:
        first, *others = shapes
        other = next((row for row in others if shapes[row] != shapes[first]), None)
        if other is not None:
            sizes = [
                f"{self._files.title(row)} is {shapes[row][1]}x{shapes[row][0]}" for row in (first, other)
            ]
            raise BadData(
                f"{self.name} has images of different sizes: {sizes[0]} and {sizes[1]}. Give --size N, and "
                "each is resized by its shorter side and cropped to N x N."
            )


class ArrayOfImages:
    """Images under `images`, `x` or `arr_0` of an .npz; memory-mapped if the file is not compressed."""

    notes = ()

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.name = str(path)
        self._path, self._size = path, size
        self._array = _images_in(path)
        channels_first(self.name, np.array(self._array[:1]))
        if self._array.dtype != np.uint8:
            raise BadData(
                f"{path} holds {self._array.dtype} images, and must hold uint8 from 0 to 255: for floats in "
                "[0, 1] store np.round(images * 255).astype(np.uint8)."
            )

    def __len__(self) -> int:
        return len(self._array)

    def fetch(self, rows: list[int]) -> Tensor:
        return refit(channels_first(self.name, self._array[rows]), self._size, None)

    def digest(self) -> str:
        total = hashlib.blake2b(f"{self._array.shape}".encode(), digest_size=16)
        for start in range(0, len(self._array), _DIGEST_ROWS):
            total.update(np.ascontiguousarray(self._array[start : start + _DIGEST_ROWS]).data)
        return f"{total.hexdigest()} size={self._size}"


class SourceOfImages:
    """The images of a data source."""

    notes = ()

    def __init__(self, source: ImageSource) -> None:
        self.name = source.name
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def fetch(self, rows: list[int]) -> Tensor:
        return self._source.fetch(torch.tensor(rows))

    def digest(self) -> str:
        total = hashlib.blake2b(f"{self._source.shape}".encode(), digest_size=16)
        for rows in torch.arange(len(self)).split(_DIGEST_ROWS):
            total.update(self._source.fetch(rows).contiguous().numpy().data)
        return total.hexdigest()


def _images_in(path: Path) -> NDArray[Any]:
    keys = keys_of(path)
    key = next((key for key in IMAGE_KEYS if key in keys), None)
    if key is None:
        raise no_images(str(path), keys)
    array = read_array(path, key, mapped=True)
    if not array.ndim:
        raise BadData(f"{path}: {key} is one number, and must be images.")
    return array

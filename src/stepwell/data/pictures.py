"""Any picture that Pillow reads as uint8 pixels of one size and mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from stepwell.data.source import BadData, ImageSource, InMemory, OnDisk, Options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels: TypeAlias = NDArray[np.uint8]


_DEEP_GREY = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_GREY = ("1", "L", "LA", "La", "F", *_DEEP_GREY)
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")


def is_grey(mode: str) -> bool:
    """Whether pictures of this Pillow mode have no colour."""
    return mode in _GREY


def as_pixels(picture: Image.Image, size: int | None, channels: int) -> Pixels:
    """A picture upright, flattened and fitted, as [C, H, W]; `size` None keeps its height and width."""
    flat = _flat(ImageOps.exif_transpose(picture)).convert("L" if channels == 1 else "RGB")
    if size is not None:
        flat = ImageOps.fit(flat, (size, size), Image.Resampling.LANCZOS)
    rows = np.array(flat)
    return np.ascontiguousarray(rows[None] if rows.ndim == 2 else rows.transpose(2, 0, 1))


def _flat(picture: Image.Image) -> Image.Image:
    """Eight bits a channel and no alpha."""
    if picture.mode in _DEEP_GREY:
        return _eight_bits(picture)
    if picture.mode == "F":
        raise BadData("floating point, whose range is anybody's guess")
    if picture.mode in _ALPHA or "transparency" in picture.info:
        # Pillow's own conversion would show the colours that hide behind transparent pixels.
        above = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    return picture


def _eight_bits(picture: Image.Image) -> Image.Image:
    """65535 as 255; Pillow's own conversion clips at 255, which turns 16-bit pictures white."""
    deep = np.asarray(picture).astype(np.int64)
    if deep.min() < 0 or deep.max() > 65535:
        raise BadData("more than 16 bits a channel")
    return Image.fromarray(((deep * 255 + 32767) // 65535).astype(np.uint8))


def refit(pixels: Tensor, size: int | None, channels: int | None) -> Tensor:
    """Images [N, C, H, W] at the size and channels asked for, as a folder of them would be read."""
    count, given, height, width = pixels.shape
    wanted = given if channels is None else channels
    if wanted == given and size in (None, height) and size in (None, width):
        return pixels
    first = (wanted, size or height, size or width)
    fitted = torch.empty((count, *first), dtype=torch.uint8)
    for row, image in enumerate(pixels.permute(0, 2, 3, 1).numpy()):
        picture = Image.fromarray(np.ascontiguousarray(image[..., 0] if given == 1 else image))
        fitted[row] = torch.from_numpy(as_pixels(picture, size, wanted))
    return fitted


T = TypeVar("T")

_AT_ONCE = 1024
"""Futures in flight: a million of them would need more memory than the pictures."""
_NAMED = 5


class Pictures(Protocol):
    """Things that Pillow may be able to open."""

    @property
    def name(self) -> str: ...
    @property
    def things(self) -> str:
        """What messages count: files, rows."""
        ...

    def __len__(self) -> int: ...
    def open(self, row: int) -> Image.Image: ...
    def title(self, row: int) -> str:
        """What to call a picture in a message."""
        ...


@dataclass(frozen=True)
class Gallery:
    """The readable pictures, all of one shape; `pixels` if they fit into memory."""

    pictures: Pictures
    rows: list[int]
    shape: tuple[int, int, int]
    pixels: Tensor | None
    notes: tuple[str, ...]
    workers: int

    def source(self, labels: list[int] | None, classes: int, flips: bool) -> ImageSource:
        """The pictures with these labels, one for each of `rows`."""
        name = self.pictures.name
        column = None if labels is None else torch.tensor(labels, dtype=torch.int64)
        if self.pixels is not None:
            return InMemory(self.pixels, name=name, labels=column, classes=classes, flips=flips)
        return OnDisk(
            self._decode,
            len(self.rows),
            self.shape,
            name=name,
            labels=column,
            classes=classes,
            flips=flips,
            workers=self.workers,
        )

    def _decode(self, index: int) -> Tensor:
        row = self.rows[index]
        try:
            return _decoded(self.pictures, row, self.shape)
        except Exception as error:
            raise BadData(
                f"{self.pictures.name}: {self.pictures.title(row)} was readable at first and is not "
                f"any more ({error}): put it back, or start again without it."
            ) from error


def gallery(pictures: Pictures, options: Options) -> Gallery:
    """Look at every picture once: sizes if none is asked for, then each one's pixels.

    Decoding all of them also when they do not fit into memory is the price of skipping damaged files
    before training and not in the middle of it, and of a memory limit that never changes the data.
    """
    rows, wrong = list(range(len(pictures))), dict[int, str]()
    size, channels = options.size, options.channels
    if size is None or channels is None:
        looks = dict(_each(options.workers, lambda row: (row, _attempt(_look, pictures, row)), rows))
        wrong = {row: look for row, look in looks.items() if isinstance(look, str)}
        seen = [look for look in looks.values() if not isinstance(look, str)]
        rows = [row for row in rows if row not in wrong]
        _judge(pictures, rows, wrong, options.strict)
        size = size or _common_size(pictures.name, [look.size for look in seen])
        channels = channels or (1 if all(is_grey(look.mode) for look in seen) else 3)
    shape = (channels, size, size)
    fits = len(rows) * channels * size * size <= options.memory_bytes
    pixels = torch.empty((len(rows), *shape), dtype=torch.uint8) if fits else None

    def keep(place: int) -> str | None:
        image = _attempt(_decoded, pictures, rows[place], shape)
        if isinstance(image, str):
            return image
        if pixels is not None:
            pixels[place] = image
        return None

    reasons = list(_each(options.workers, keep, range(len(rows))))
    good = [place for place, reason in enumerate(reasons) if reason is None]
    wrong |= {rows[place]: reason for place, reason in enumerate(reasons) if reason is not None}
    _judge(pictures, good, wrong, options.strict)
    if pixels is not None and len(good) < len(rows):
        pixels = pixels[good]
    kept = [rows[place] for place in good]
    return Gallery(pictures, kept, shape, pixels, _skipped(pictures, wrong), options.workers)


@dataclass(frozen=True)
class _Look:
    size: tuple[int, int]
    mode: str


def _look(pictures: Pictures, row: int) -> _Look:
    with pictures.open(row) as picture:
        return _Look(picture.size, picture.mode)


def _decoded(pictures: Pictures, row: int, shape: tuple[int, int, int]) -> Tensor:
    with pictures.open(row) as picture:
        return torch.from_numpy(as_pixels(picture, shape[1], shape[0]))


def _each(workers: int, function: Callable[[int], T], rows: list[int] | range) -> Iterator[T]:
    with ThreadPoolExecutor(workers, thread_name_prefix="stepwell-look") as pool:
        for start in range(0, len(rows), _AT_ONCE):
            yield from pool.map(function, rows[start : start + _AT_ONCE])


def _attempt(function: Callable[..., T], pictures: Pictures, row: int, *arguments: object) -> T | str:
    """The result, or in a few words why this picture has none."""
    try:
        return function(pictures, row, *arguments)
    except UnidentifiedImageError:
        return "not an image"
    except BadData as error:
        return str(error)
    except MemoryError:
        raise
    except Image.DecompressionBombError:
        return "too large for Pillow"
    except Exception as error:
        # A disk that fails says nothing about the picture: skipping would change the data in silence.
        if isinstance(error, OSError) and error.errno is not None:
            raise BadData(
                f"{pictures.name}: {pictures.title(row)} cannot be read ({error.strerror}): "
                "make it readable, or move it away."
            ) from error
        return "damaged"


def _common_size(name: str, sizes: list[tuple[int, int]]) -> int:
    small, large = min(sizes), max(sizes)
    if small == large and small[0] == small[1]:
        return small[0]
    found = (
        f"its images are {small[0]}x{small[1]}, which is not square"
        if small == large
        else f"its images have different sizes, such as {small[0]}x{small[1]} and {large[0]}x{large[1]}"
    )
    raise BadData(
        f"{name}: {found}. Write size=N, and each is resized by its shorter side and cropped to N x N."
    )


def _named(pictures: Pictures, wrong: dict[int, str]) -> str:
    first = [f"{pictures.title(row)} ({wrong[row]})" for row in sorted(wrong)[:_NAMED]]
    return ", ".join(first + ["..."] * (len(wrong) > _NAMED))


def _judge(pictures: Pictures, good: list[int], wrong: dict[int, str], strict: bool) -> None:
    if not good:
        raise BadData(
            f"{pictures.name} has {len(wrong)} {pictures.things} and none is a readable image: "
            f"{_named(pictures, wrong)}. Give pictures that Pillow reads (png, jpeg, webp, ...)."
        )
    if strict and wrong:
        raise BadData(
            f"{pictures.name}: {len(wrong)} of {len(pictures)} {pictures.things} are not readable images: "
            f"{_named(pictures, wrong)}. Remove them, or leave out strict to skip them."
        )


def _skipped(pictures: Pictures, wrong: dict[int, str]) -> tuple[str, ...]:
    if not wrong:
        return ()
    return (
        f"skipped {len(wrong)} of {len(pictures)} {pictures.things} that are not readable images: "
        f"{_named(pictures, wrong)}",
    )

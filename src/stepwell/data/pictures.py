"""Pictures of any size, mode and format as uint8 pixels of one shape; unreadable ones are skipped."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from stepwell.data.source import BadData, ImageSource, InMemory, OnDisk, Options

T = TypeVar("T")

# Pillow warns of pictures that are refused here. For the whole process: threads share the list of filters.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

_DEEP_GREY = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_GREY = ("1", "L", "LA", "La", "F", *_DEEP_GREY)
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
MOST_PIXELS = 80_000_000
"""Of one picture: its pixels are all in memory while it is reduced, three bytes each."""
_TOO_LARGE = f"more than {MOST_PIXELS // 10**6} million pixels: reduce it"
_AT_ONCE = 1024
"""Futures in flight: a million of them would need more memory than the pictures."""


def opened(file: Path) -> Image.Image:
    """A picture whose header was read, if it is not too large to be decoded."""
    try:
        picture = Image.open(file)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadData(_TOO_LARGE) from None
    if picture.width * picture.height > MOST_PIXELS:
        picture.close()
        raise BadData(_TOO_LARGE)
    return picture


def as_pixels(picture: Image.Image, size: int | None, channels: int) -> Tensor:
    """A picture upright, without alpha, resized and cropped, as uint8 [C, H, W]; size None keeps its size."""
    flat = _flat(ImageOps.exif_transpose(picture)).convert("L" if channels == 1 else "RGB")
    if size is not None:
        flat = ImageOps.fit(flat, (size, size), Image.Resampling.LANCZOS)
    rows = np.array(flat)
    return torch.from_numpy(np.ascontiguousarray(rows[None] if rows.ndim == 2 else rows.transpose(2, 0, 1)))


def refit(pixels: Tensor, size: int | None, channels: int | None) -> Tensor:
    """Images [N, C, H, W] at this size and number of channels, as if they were read from a folder."""
    count, stored, height, width = pixels.shape
    channels = stored if channels is None else channels
    if channels == stored and size in (None, height) and size in (None, width):
        return pixels
    fitted = torch.empty((count, channels, size or height, size or width), dtype=torch.uint8)
    for row, image in enumerate(pixels.permute(0, 2, 3, 1).numpy()):
        picture = Image.fromarray(np.ascontiguousarray(image[..., 0] if stored == 1 else image))
        fitted[row] = as_pixels(picture, size, channels)
    return fitted


def _flat(picture: Image.Image) -> Image.Image:
    """Eight bits a channel and no alpha."""
    if picture.mode in _DEEP_GREY:
        return _eight_bits(picture)
    if picture.mode == "F":
        raise BadData("floating point, whose range is unknown")
    if picture.mode in _ALPHA or "transparency" in picture.info:
        # Pillow's own conversion would show the colours behind transparent pixels.
        above = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    return picture


def _eight_bits(picture: Image.Image) -> Image.Image:
    """65535 as 255; Pillow's own conversion clips at 255, which turns 16-bit pictures white."""
    deep = np.asarray(picture).astype(np.int64)
    if deep.min() < 0 or deep.max() > 65535:
        raise BadData("more than 16 bits a channel")
    return Image.fromarray(((deep * 255 + 32767) // 65535).astype(np.uint8))


class Pictures(Protocol):
    """Files or rows that Pillow may be able to open."""

    @property
    def name(self) -> str: ...
    @property
    def things(self) -> str:
        """What messages call them: files, rows."""
        ...

    def __len__(self) -> int: ...
    def open(self, row: int) -> Image.Image: ...
    def title(self, row: int) -> str:
        """The name of a picture in messages."""
        ...


@dataclass(frozen=True)
class Readable:
    """The readable pictures, all of one shape; `pixels` [N, C, H, W] if they fit into memory."""

    pictures: Pictures
    rows: list[int]
    shape: tuple[int, int, int]
    pixels: Tensor | None
    notes: tuple[str, ...]
    workers: int

    def source(self, labels: list[int] | None, classes: int, flips: bool) -> ImageSource:
        """A source of these pictures, with one label for each of `rows`."""
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


def scan(pictures: Pictures, options: Options) -> Readable:
    """Open every picture once: for its size unless one is given, then for its pixels.

    All are decoded even if they do not fit into memory, so that damaged files are skipped before training
    and the memory limit never changes the data.
    """
    rows, unreadable = list(range(len(pictures))), dict[int, str]()
    size, channels = options.size, options.channels
    if size is None or channels is None:
        headers, unreadable = attempt_all(pictures, _header, options.workers)
        rows = list(headers)
        _check(pictures, rows, unreadable, options.strict)
        sizes, modes = zip(*headers.values(), strict=True)
        size = size or _common_size(pictures.name, sizes)
        channels = channels or (1 if all(mode in _GREY for mode in modes) else 3)
    shape = (channels, size, size)
    fits = len(rows) * channels * size * size <= options.memory_bytes
    pixels = torch.empty((len(rows), *shape), dtype=torch.uint8) if fits else None

    def decode(place: int) -> str | None:
        image = _attempt(_decoded, pictures, rows[place], shape)
        if isinstance(image, _Unreadable):
            return image.why
        if pixels is not None:
            pixels[place] = image
        return None

    reasons = list(_each(options.workers, decode, range(len(rows))))
    good = [place for place, reason in enumerate(reasons) if reason is None]
    unreadable |= {rows[place]: reason for place, reason in enumerate(reasons) if reason is not None}
    _check(pictures, good, unreadable, options.strict)
    if pixels is not None and len(good) < len(rows):
        pixels = pixels[good]
    notes = skipped(pictures, unreadable)
    return Readable(pictures, [rows[place] for place in good], shape, pixels, notes, options.workers)


def attempt_all(
    pictures: Pictures, function: Callable[[Pictures, int], T], workers: int = 2
) -> tuple[dict[int, T], dict[int, str]]:
    """What a function says of every picture that can be read, by row, and why others cannot."""
    rows = range(len(pictures))
    results = dict(_each(workers, lambda row: (row, _attempt(function, pictures, row)), rows))
    bad = {row: result.why for row, result in results.items() if isinstance(result, _Unreadable)}
    return {row: result for row, result in results.items() if not isinstance(result, _Unreadable)}, bad


def skipped(pictures: Pictures, unreadable: dict[int, str]) -> tuple[str, ...]:
    """What to tell about pictures that cannot be read, if there are any."""
    text = f"skipped {len(unreadable)} of {len(pictures)} {pictures.things} that are not readable images"
    return (f"{text}: {_reasons(pictures, unreadable)}",) if unreadable else ()


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few of many names."""
    return ", ".join([*names[:most], *["..."] * (len(names) > most)])


def _header(pictures: Pictures, row: int) -> tuple[tuple[int, int], str]:
    """Size and mode, without decoding."""
    with pictures.open(row) as picture:
        return picture.size, picture.mode


def _decoded(pictures: Pictures, row: int, shape: tuple[int, int, int]) -> Tensor:
    with pictures.open(row) as picture:
        return as_pixels(picture, shape[1], shape[0])


def _each(workers: int, function: Callable[[int], T], rows: list[int] | range) -> Iterator[T]:
    with ThreadPoolExecutor(workers, thread_name_prefix="stepwell-scan") as pool:
        for start in range(0, len(rows), _AT_ONCE):
            yield from pool.map(function, rows[start : start + _AT_ONCE])


@dataclass(frozen=True)
class _Unreadable:
    why: str


def _attempt(function: Callable[..., T], pictures: Pictures, row: int, *arguments: object) -> T | _Unreadable:
    """The function's result, or why this picture cannot be read."""
    try:
        return function(pictures, row, *arguments)
    except UnidentifiedImageError:
        return _Unreadable("not an image")
    except BadData as error:
        return _Unreadable(str(error))
    except MemoryError:
        raise
    except Image.DecompressionBombError:
        return _Unreadable(_TOO_LARGE)
    except Exception as error:
        # A failing disk is not a damaged picture: skipping would silently change the data.
        if isinstance(error, OSError) and error.errno is not None:
            raise BadData(
                f"{pictures.name}: {pictures.title(row)} cannot be read ({error.strerror}): "
                "make it readable, or move it away."
            ) from error
        return _Unreadable("damaged")


def _common_size(name: str, sizes: Sequence[tuple[int, int]]) -> int:
    small, large = min(sizes), max(sizes)
    if small == large and small[0] == small[1]:
        return small[0]
    problem = (
        f"its images are {small[0]}x{small[1]}, which is not square"
        if small == large
        else f"its images have different sizes, such as {small[0]}x{small[1]} and {large[0]}x{large[1]}"
    )
    raise BadData(
        f"{name}: {problem}. Write size=N, and each is resized by its shorter side and cropped to N x N."
    )


def _check(pictures: Pictures, good: list[int], unreadable: dict[int, str], strict: bool) -> None:
    count, things, reasons = len(unreadable), pictures.things, _reasons(pictures, unreadable)
    if not good:
        raise BadData(
            f"{pictures.name} has {count} {things} and none is a readable image: {reasons}. Give pictures "
            "that Pillow reads (png, jpeg, webp, ...)."
        )
    if strict and unreadable:
        raise BadData(
            f"{pictures.name}: {count} of {len(pictures)} {things} are not readable images: {reasons}. "
            "Remove them, or leave out strict to skip them."
        )


def _reasons(pictures: Pictures, unreadable: dict[int, str]) -> str:
    return listed([f"{pictures.title(row)} ({unreadable[row]})" for row in sorted(unreadable)])

"""Training examples by index: images in memory or decoded on demand, and how they are read and split."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter, StepwellError
from stepwell.core.tick import Tick, stream_key, uniforms


class BadData(StepwellError, ValueError):
    """Images, labels or files that cannot be used."""


class ExampleSource(Protocol):
    """Examples of one shape, by index: images, or latents of images."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        ...

    @property
    def labels(self) -> Tensor | None:
        """[N] int64, or None."""
        ...

    @property
    def classes(self) -> int:
        """The number of classes; 0 without labels."""
        ...

    @property
    def in_memory(self) -> bool:
        """Whether `examples` only copies."""
        ...

    def __len__(self) -> int: ...
    def examples(self, indices: Tensor, tick: Tick | None = None) -> Tensor:
        """The examples at `indices` [B] as the network gets them, float32 [B, C, H, W].

        Random mirroring and posterior noise follow the tick; without one there is neither.
        """
        ...


class ImageSource(ExampleSource, Protocol):
    """Images of one shape, by index; as examples they are in [-1, 1]."""

    @property
    def flips(self) -> bool:
        """Whether images are randomly flipped from left to right."""
        ...

    def fetch(self, indices: Tensor) -> Tensor:
        """The images at `indices` [B], as uint8 [B, C, H, W]."""
        ...


class InMemory:
    """Images held as one uint8 tensor [N, C, H, W]."""

    in_memory = True

    def __init__(
        self,
        pixels: Tensor,
        *,
        name: str,
        labels: Tensor | None = None,
        classes: int = 0,
        flips: bool = False,
    ) -> None:
        if pixels.dtype != torch.uint8 or pixels.dim() != 4:
            raise BadData(
                f"{name}: images must be uint8 of shape [N, C, H, W], not "
                f"{pixels.dtype} of shape {list(pixels.shape)}."
            )
        channels, height, width = pixels.shape[1:]
        self.name = name
        self.shape = (channels, height, width)
        self.labels = checked_labels(name, labels, len(pixels), classes)
        self.classes = classes
        self.flips = flips
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def fetch(self, indices: Tensor) -> Tensor:
        # pixels[indices] takes 5 to 16 times as long on the CPU.
        return self._pixels.index_select(0, indices)

    def examples(self, indices: Tensor, tick: Tick | None = None) -> Tensor:
        return _in_unit_range(self, indices, tick)


class OnDisk:
    """Images that `decode` reads one at a time, on `workers` threads."""

    in_memory = False

    def __init__(
        self,
        decode: Callable[[int], Tensor],
        count: int,
        shape: tuple[int, int, int],
        *,
        name: str,
        labels: Tensor | None = None,
        classes: int = 0,
        flips: bool = False,
        workers: int = 2,
    ) -> None:
        self.name = name
        self.shape = shape
        self.labels = checked_labels(name, labels, count, classes)
        self.classes = classes
        self.flips = flips
        self._decode = decode
        self._count = count
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="stepwell-decode")

    def __len__(self) -> int:
        return self._count

    def fetch(self, indices: Tensor) -> Tensor:
        images = list(self._pool.map(self._decode, indices.tolist()))
        return torch.stack(images) if images else torch.empty((0, *self.shape), dtype=torch.uint8)

    def examples(self, indices: Tensor, tick: Tick | None = None) -> Tensor:
        return _in_unit_range(self, indices, tick)


class Part:
    """Some rows of another source, without a copy."""

    def __init__(self, source: ImageSource, rows: Tensor, name: str) -> None:
        self.name = name
        self.shape = source.shape
        self.labels = None if source.labels is None else source.labels[rows]
        self.classes = source.classes
        self.flips = source.flips
        self.in_memory = source.in_memory
        self._source = source
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def fetch(self, indices: Tensor) -> Tensor:
        return self._source.fetch(self._rows.index_select(0, indices))

    def examples(self, indices: Tensor, tick: Tick | None = None) -> Tensor:
        return self._source.examples(self._rows.index_select(0, indices), tick)


@dataclass(frozen=True)
class LatentOrigin:
    """The autoencoder that made latents, as their manifest says."""

    autoencoder: str
    """Where it was loaded from: a folder, or a name on the hub."""
    fingerprint: str
    """A digest of its weights: another decoder would turn these latents into noise."""
    image_shape: tuple[int, int, int]
    """Channels, height, width of the images that were encoded."""


@dataclass(frozen=True)
class DataSet:
    """Training and held-out examples, with notes for the user."""

    train: ExampleSource
    held_out: ExampleSource
    notes: tuple[str, ...] = ()
    latents: LatentOrigin | None = None
    """None if the examples are images."""
    class_names: tuple[str, ...] = ()
    """What class k is called, if the data say."""
    captions: tuple[str, ...] = ()
    """The text that label k stands for, of data with captions."""


def checked_labels(name: str, labels: Tensor | None, count: int, classes: int) -> Tensor | None:
    """`labels` as [N] int64 in [0, classes); None stays None."""
    if labels is None:
        return None
    if labels.shape != (count,):
        raise BadData(f"{name}: {count} images need labels of shape [{count}], not {list(labels.shape)}.")
    if count and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise BadData(
            f"{name}: labels run from {int(labels.min())} to {int(labels.max())}, and must count "
            f"{classes} classes from 0: leave out the images without a class, or train without labels."
        )
    return labels.to(torch.int64)


def split(source: ImageSource, notes: tuple[str, ...] = (), class_names: tuple[str, ...] = ()) -> DataSet:
    """Hold out a fixed pseudo-random tenth (1 to 2,000 images), the same for every training seed."""
    count = len(source)
    if count < 2:
        raise BadData(
            f"{source.name} has {count} image: at least 2 are needed, one to train on and one to hold out."
        )
    held = min(2000, max(1, round(count / 10)))
    # Hashed uniforms rather than randperm: the split must outlive versions of torch.
    order = uniforms(stream_key("held out"), count).argsort(stable=True)
    note = f"held out {held:,} of {count:,} images, a fixed pseudo-random choice"
    return DataSet(
        Part(source, order[held:].sort().values, source.name),
        Part(source, order[:held].sort().values, f"{source.name} held out"),
        (*notes, note),
        class_names=class_names,
    )


def _in_unit_range(source: ImageSource, indices: Tensor, tick: Tick | None) -> Tensor:
    """Images in [-1, 1], randomly mirrored by the tick where the data allow it."""
    pixels = source.fetch(indices)
    if tick is not None and source.flips:
        mirrored = (tick.uniform("flip", len(indices)) < 0.5).nonzero().flatten()
        pixels = pixels.index_copy(0, mirrored, pixels.index_select(0, mirrored).flip(-1))
    return to_unit(pixels)


def to_unit(pixels: Tensor) -> Tensor:
    """uint8 pixels as float32 in [-1, 1]."""
    return pixels.to(torch.float32).div_(127.5).sub_(1)


def to_pixels(x: Tensor) -> Tensor:
    """Images in [-1, 1] as uint8, rounded and clamped; the inverse of `to_unit`."""
    return x.to(torch.float32).add(1).mul_(127.5).round_().clamp_(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Options:
    """The options of `load`, checked; None leaves the choice to the data."""

    size: int | None = None
    channels: int | None = None
    labels: bool = False
    flips: bool | None = None
    strict: bool = False
    workers: int = 2
    memory_bytes: int = 2 << 30
    captions: bool = False

    def __post_init__(self) -> None:
        if self.size is not None:
            require.count("size", self.size)
        if self.channels not in (None, 1, 3):
            raise InvalidParameter(f"channels must be 1 (grey) or 3 (colour), not {self.channels!r}.")
        require.count("workers", self.workers)
        require.count("memory_bytes", self.memory_bytes, least=0)

    def flip_or(self, default: bool) -> tuple[bool, tuple[str, ...]]:
        """Whether to mirror images, and a note if that was not asked for."""
        if self.flips is not None:
            return self.flips, ()
        note = "random horizontal flips are on; set flips=false if left and right differ in meaning"
        return default, (note,) if default else ()

"""Where images go, batch by batch: none of them is held longer than its batch, but for a sheet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.generate.grid import as_picture, sheet
from stepwell.generate.identity import NAME, Identity
from stepwell.generate.originals import Originals

LARGEST_SHEET = 4096


class Writer(Protocol):
    """One kind of output. `prepare` and `finish` are called by the first process only, all else by each."""

    holds_a_fixed_count: bool
    """Whether it has room for so many images and no more: another number is then another output."""

    def prepare(self, identity: Identity) -> None:
        """Make the place for images, or check that what it holds can be continued."""
        ...

    def has(self, indices: range) -> bool:
        """Whether all these images are there already."""
        ...

    def write(self, indices: range, images: Tensor) -> None:
        """Uint8 images [B, C, H, W] with these numbers."""
        ...

    def finish(self) -> None:
        """All images of all processes are written."""
        ...


class FolderWriter:
    """Single files, named by number; each appears as a whole or not at all."""

    holds_a_fixed_count = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._there: frozenset[str] | None = None

    def prepare(self, identity: Identity) -> None:
        if self._folder.is_file():
            raise InvalidParameter(f"{self._folder} is a file: name a folder, an .npz or a .png.")
        occupied = self._folder.is_dir() and any(self._folder.iterdir())
        identity.claim(self._folder / NAME, holds_images=occupied)

    def has(self, indices: range) -> bool:
        if self._there is None:
            self._there = frozenset(entry.name for entry in os.scandir(self._folder))
        return all(_file(index) in self._there for index in indices)

    def write(self, indices: range, images: Tensor) -> None:
        for index, image in zip(indices, images, strict=True):
            temporary = self._folder / f".{_file(index)}.part"
            as_picture(image).save(temporary, format="png")
            temporary.replace(self._folder / _file(index))

    def finish(self) -> None:
        pass


class SheetWriter:
    """One picture of all images side by side; always made anew."""

    holds_a_fixed_count = False

    def __init__(self, path: Path, count: int, originals: Originals | None = None) -> None:
        if count > LARGEST_SHEET:
            raise InvalidParameter(
                f"a sheet of {count:,} images is too large to look at ({LARGEST_SHEET:,} at most): "
                "write a folder or an .npz instead."
            )
        self._path, self._originals = path, originals
        self._held: list[Tensor] = []

    def prepare(self, identity: Identity) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def has(self, indices: range) -> bool:
        return False

    def write(self, indices: range, images: Tensor) -> None:
        self._held.append(images.cpu())

    def finish(self) -> None:
        sheet_of(torch.cat(self._held), self._originals).save(self._path)


def sheet_of(images: Tensor, originals: Originals | None) -> Image.Image:
    """All images side by side; those of super-resolution between their input and their original."""
    if originals is not None:
        return originals.triples(images)
    return sheet(images, scale=max(1, 64 // images.shape[-1]))


def _file(index: int) -> str:
    return f"{index:06d}.png"

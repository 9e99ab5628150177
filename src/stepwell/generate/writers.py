"""Where images are written: a folder of PNGs, an .npz, or one .png sheet.

A small record beside them says what they were made by, so that two models never mix in one place.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Protocol
from zipfile import ZipFile, ZipInfo

import numpy as np
import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter, StepwellError
from stepwell.generate.sheets import as_picture
from stepwell.generate.super_resolution import LowResolution, sample_sheet
from stepwell.runs.io import remove_leftovers, replacing, write_atomic, write_json

RECORD = "generation.json"
LARGEST_SHEET = 4096


class OtherImages(StepwellError, ValueError):
    """A place that holds images of another model, seed or solver."""


class Writer(Protocol):
    """One kind of output. `prepare` and `finish` are called by rank 0 only, the rest by every rank."""

    fixed_count: bool
    """Whether it has room for so many images and no more: another count is then another output."""

    def prepare(self, record: dict[str, Any]) -> None:
        """Make the place for images with this record, or check that what it holds can be continued."""
        ...

    def has(self, indices: range) -> bool:
        """Whether all these images are there already."""
        ...

    def write(self, indices: range, images: Tensor) -> None:
        """Uint8 images [B, C, H, W] with these indices."""
        ...

    def finish(self) -> None:
        """All images of all ranks are written."""
        ...


def _claim(path: Path, out: Path, record: dict[str, Any], occupied: bool) -> None:
    """Write the record of `out` to `path`, or check that the one there is the same."""
    # As JSON has it: lists for tuples.
    record = json.loads(json.dumps(record))
    if not path.exists():
        if occupied:
            raise OtherImages(f"{out} holds files that are not of stepwell generate: choose another --out.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
        return
    before = _read(path)
    changed = [
        f"{key} was {before.get(key)!r} and is {record.get(key)!r}"
        for key in sorted(before.keys() | record.keys())
        if before.get(key) != record.get(key)
    ]
    if changed:
        raise OtherImages(
            f"{out} holds other images ({'; '.join(changed)}): repeat the command that made them to continue "
            "it, or choose another --out."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise OtherImages(
            f"{path} is damaged: delete it with the images it belongs to, or choose another --out."
        )
    return values


class NpzWriter:
    """An .npz of `images` [N, H, W, C] uint8 and, from a conditional network, `labels` [N] int64.

    Until it is finished there are two files beside it: the rows as an .npy, and a byte per row that says
    whether it is written. Rows are not written through a memory map, whose pages would count as memory.
    """

    fixed_count = True

    def __init__(self, path: Path, count: int, shape: tuple[int, int, int], labels: list[int] | None) -> None:
        channels, height, width = shape
        self._path, self._labels = path, labels
        self._shape = (count, height, width, channels)
        self._rows = path.with_name(f"{path.name}.rows.npy")
        self._done = path.with_name(f"{path.name}.done")

    def prepare(self, record: dict[str, Any]) -> None:
        begun = self._path.exists() or self._rows.exists()
        _claim(self._path.with_name(f"{self._path.name}.{RECORD}"), self._path, record, begun)
        if self._path.exists() or self._done.exists():
            return
        # The file of done rows comes last: with it, the rows are known to be there.
        np.lib.format.open_memmap(self._rows, mode="w+", dtype=np.uint8, shape=self._shape)
        write_atomic(self._done, bytes(self._shape[0]))

    def has(self, indices: range) -> bool:
        if self._path.exists():
            return True
        with self._done.open("rb") as done:
            done.seek(indices.start)
            written = done.read(len(indices))
        return len(written) == len(indices) and all(written)

    def write(self, indices: range, images: Tensor) -> None:
        rows = images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        row_bytes = rows[0].nbytes
        header = self._rows.stat().st_size - self._shape[0] * row_bytes
        _write_at(self._rows, header + indices.start * row_bytes, rows.tobytes())
        _write_at(self._done, indices.start, b"\x01" * len(indices))

    def finish(self) -> None:
        if not self._path.exists():
            self._pack()
        for path in (self._path, self._done):
            remove_leftovers(path.parent, path.name)
        self._rows.unlink(missing_ok=True)
        self._done.unlink(missing_ok=True)

    def _pack(self) -> None:
        missing = self._done.read_bytes().count(0)
        if missing:
            raise OtherImages(f"{missing} rows of {self._rows} are not written: run the same command again.")
        with replacing(self._path) as temporary, ZipFile(temporary, "w") as archive:
            # A ZipInfo without a date: the same images are the same bytes, whenever they are made.
            with (
                self._rows.open("rb") as rows,
                archive.open(ZipInfo("images.npy"), "w", force_zip64=True) as out,
            ):
                shutil.copyfileobj(rows, out, 1 << 20)
            if self._labels is not None:
                with archive.open(ZipInfo("labels.npy"), "w") as out:
                    np.lib.format.write_array(out, np.asarray(self._labels, dtype=np.int64))


def _write_at(path: Path, offset: int, data: bytes) -> None:
    """Write into the middle of a file, and wait until it is on the disk."""
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


class FolderWriter:
    """A folder of PNGs, named by index; each appears as a whole or not at all."""

    fixed_count = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._there: frozenset[str] | None = None

    def prepare(self, record: dict[str, Any]) -> None:
        if self._folder.is_file():
            raise InvalidParameter(f"{self._folder} is a file: name a folder, an .npz or a .png.")
        occupied = self._folder.is_dir() and any(self._folder.iterdir())
        _claim(self._folder / RECORD, self._folder, record, occupied)

    def has(self, indices: range) -> bool:
        if self._there is None:
            self._there = frozenset(entry.name for entry in os.scandir(self._folder))
        return all(_file(index) in self._there for index in indices)

    def write(self, indices: range, images: Tensor) -> None:
        for index, image in zip(indices, images, strict=True):
            # Waiting for the disk after each of many small files would take longer than making them.
            with replacing(self._folder / _file(index), synced=False) as temporary:
                as_picture(image).save(temporary, format="png")

    def finish(self) -> None:
        remove_leftovers(self._folder)


class SheetWriter:
    """One picture of all images side by side; always made again."""

    fixed_count = False

    def __init__(self, path: Path, count: int, low_resolution: LowResolution | None = None) -> None:
        if count > LARGEST_SHEET:
            raise InvalidParameter(
                f"a sheet of {count:,} images is too large to look at ({LARGEST_SHEET:,} at most): "
                "write a folder or an .npz instead."
            )
        self._path, self._low_resolution = path, low_resolution
        self._held: list[Tensor] = []

    def prepare(self, record: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def has(self, indices: range) -> bool:
        return False

    def write(self, indices: range, images: Tensor) -> None:
        self._held.append(images.cpu())

    def finish(self) -> None:
        with replacing(self._path) as temporary:
            sample_sheet(torch.cat(self._held), self._low_resolution).save(temporary, format="png")


def _file(index: int) -> str:
    return f"{index:06d}.png"

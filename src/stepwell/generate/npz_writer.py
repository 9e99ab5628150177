"""Images as one .npz of any length, in constant memory: rows on disk first, then copied into the archive."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import numpy as np
from torch import Tensor

from stepwell.generate.identity import NAME, Identity, OtherImages


class NpzWriter:
    """`images` [N, H, W, C] uint8 and, of a conditional network, `labels` [N] int64.

    Until it is finished there are two files beside it: the rows as an .npy, and a byte for each row that
    says whether it is written. Rows are written at their place rather than into a memory map, whose pages
    would count as memory of the process.
    """

    holds_a_fixed_count = True

    def __init__(self, path: Path, count: int, shape: tuple[int, int, int], labels: list[int] | None) -> None:
        channels, height, width = shape
        self._path, self._labels = path, labels
        self._shape = (count, height, width, channels)
        self._rows = path.with_name(f"{path.name}.rows.npy")
        self._done = path.with_name(f"{path.name}.done")

    def prepare(self, identity: Identity) -> None:
        begun = self._path.exists() or self._rows.exists()
        identity.claim(self._path.with_name(f"{self._path.name}.{NAME}"), holds_images=begun)
        if self._path.exists() or self._done.exists():
            return
        # The file of done rows comes last: with it, the rows are known to be there.
        np.lib.format.open_memmap(self._rows, mode="w+", dtype=np.uint8, shape=self._shape)
        self._done.write_bytes(bytes(self._shape[0]))

    def has(self, indices: range) -> bool:
        if self._path.exists():
            return True
        with self._done.open("rb") as done:
            done.seek(indices.start)
            return all(done.read(len(indices)))

    def write(self, indices: range, images: Tensor) -> None:
        rows = images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        row_bytes = rows[0].nbytes
        header = self._rows.stat().st_size - self._shape[0] * row_bytes
        _write_at(self._rows, header + indices.start * row_bytes, rows.tobytes())
        _write_at(self._done, indices.start, b"\x01" * len(indices))

    def finish(self) -> None:
        if not self._path.exists():
            self._pack()
        self._rows.unlink(missing_ok=True)
        self._done.unlink(missing_ok=True)

    def _pack(self) -> None:
        missing = self._done.read_bytes().count(0)
        if missing:
            raise OtherImages(f"{missing} rows of {self._rows} are not written: run the same command again.")
        temporary = self._path.with_name(f".{self._path.name}.part")
        with ZipFile(temporary, "w") as archive:
            # A ZipInfo without a date: the same images are the same bytes, whenever they are made.
            with (
                self._rows.open("rb") as rows,
                archive.open(ZipInfo("images.npy"), "w", force_zip64=True) as out,
            ):
                shutil.copyfileobj(rows, out, 1 << 20)
            if self._labels is not None:
                with archive.open(ZipInfo("labels.npy"), "w") as out:
                    np.lib.format.write_array(out, np.asarray(self._labels, dtype=np.int64))
        temporary.replace(self._path)


def _write_at(path: Path, offset: int, data: bytes) -> None:
    """Write into the middle of a file, and wait until it is on the disk."""
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())

"""Arrays of an .npz file, opened by one function that looks at every size before anything is inflated."""

from __future__ import annotations

import lzma
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from stepwell.core.reading import regular_file
from stepwell.data.source import BadData

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    AttributeError,
    TypeError,
    SyntaxError,
    KeyError,
    IndexError,
    OverflowError,
    RecursionError,
    RuntimeError,  # encrypted, or compressed in a way that zipfile does not know
    struct.error,
    tokenize.TokenError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What numpy and zipfile raise for a damaged .npz."""
MOST_GROWTH = 200
"""How many times larger than its compressed bytes an array may be; photographs grow to less than thrice."""
SMALL_BYTES = 64 << 20
"""Arrays up to this size may have grown by any factor: a mask of one colour does."""
_HEADER_BYTES = 10_000
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Header(NamedTuple):
    """What an array in an .npz announces, after its bytes were found to agree."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    start: int
    """Bytes before the numbers."""


def keys_of(path: Path) -> list[str]:
    """The names of the arrays in an .npz file."""
    try:
        with zipfile.ZipFile(regular_file(path)) as archive:
            return [entry.removesuffix(".npy") for entry in archive.namelist()]
    except _UNREADABLE as error:
        raise BadData(f"{path} is not an .npz file, or is cut off ({_said(error)}).") from error


def read_arrays(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Those of some arrays that an .npz has, each in memory."""
    found = [name for name in dict.fromkeys(keys_of(path)) if name in names]
    return {name: read_array(path, name) for name in found}


def read_array(path: Path, name: str, *, mapped: bool = False) -> NDArray[Any]:
    """One array; `mapped`: left on disk if it is not compressed, since 50,000 images of 256 px are 10 GB."""
    try:
        with zipfile.ZipFile(regular_file(path)) as archive:
            entry = archive.getinfo(f"{name}.npy")
            with archive.open(entry) as stream:
                header = _header(stream, entry)
            if mapped and entry.compress_type == zipfile.ZIP_STORED:
                return _mapped(path, entry, header)
            _require_room(entry)
            with archive.open(entry) as stream:
                array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
                return array
    except BadData as error:
        raise BadData(f"{path}: {name} {error}") from None
    except _UNREADABLE as error:
        raise BadData(
            f"{path}: {name} is not a plain array, or is damaged ({_said(error)}): write it again with "
            "np.savez."
        ) from error


def _header(stream: IO[bytes], entry: zipfile.ZipInfo) -> Header:
    version = npy.read_magic(stream)
    if version not in _READERS:
        raise ValueError(f"version {version} of numpy's format")
    shape, fortran, dtype = _READERS[version](stream, max_header_size=_HEADER_BYTES)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    start = stream.tell()
    needed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or needed != entry.file_size - start:
        raise BadData(
            f"announces {list(shape)} of {dtype}, {needed:,} bytes, and has {entry.file_size - start:,}: "
            "it is cut off, or was not written by numpy."
        )
    return Header(shape, dtype, fortran, start)


def _require_room(entry: zipfile.ZipInfo) -> None:
    """Refuse an array that would fill the memory, or that grows as no data do."""
    size, free = entry.file_size, _free_bytes()
    if size > max(SMALL_BYTES, MOST_GROWTH * entry.compress_size):
        raise BadData(
            f"would grow from {entry.compress_size:,} to {size:,} bytes, more than {MOST_GROWTH} times: no "
            "images do. Write it with np.savez if it is meant."
        )
    if size > free:
        raise BadData(
            f"needs {size:,} bytes, and {free:,} are free: store the images as a folder, which is read in "
            "parts."
        )


def _free_bytes() -> int:
    """Memory that a process can have without swapping, as far as the system says."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
        return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else 1 << 62


def _mapped(path: Path, entry: zipfile.ZipInfo, header: Header) -> NDArray[Any]:
    with path.open("rb") as raw:
        raw.seek(entry.header_offset + 26)
        name_length, extra_length = (int.from_bytes(raw.read(2), "little") for _ in range(2))
    offset = entry.header_offset + 30 + name_length + extra_length + header.start
    return np.memmap(path, header.dtype, "r", offset, header.shape, "F" if header.fortran else "C")


def _said(error: BaseException) -> str:
    return str(error).strip()[:200] or type(error).__name__

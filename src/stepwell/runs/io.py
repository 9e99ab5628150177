"""Files that are written whole or not at all, and values that JSON can hold."""

from __future__ import annotations

import glob
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp"
"""How the names of unfinished files end; they begin with a dot."""


def finite(value: Any) -> Any:
    """`value` with infinities and NaNs as None: JSON has neither."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def replacing(path: Path, *, synced: bool = True) -> Iterator[Path]:
    """A path to write to: at the end it is renamed to `path`, and after any failure it is removed.

    Synced to the disk before, unless many small files would wait for it. A device or a pipe is no file to
    replace, and is written as it is; of a link, what it points to is replaced.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        if synced:
            synchronise(temporary)
        temporary.replace(path)
    except BaseException:
        # Also after Ctrl-C: what is half written is nobody's.
        temporary.unlink(missing_ok=True)
        raise


def synchronise(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left of a file, or of all; nobody else may be writing there."""
    of = "*" if name is None else f"{glob.escape(name)}.*"
    for path in folder.glob(f".{of}{TEMPORARY}"):
        # A folder is a checkpoint of a sharded network.
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write a value atomically as indented JSON."""
    write_atomic(path, f"{json.dumps(value, indent=2)}\n".encode())

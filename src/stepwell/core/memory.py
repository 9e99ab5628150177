"""Too little memory, told in one sentence that says what to lower."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from stepwell.core.errors import OutOfMemory

_SAID = (
    "defaultcpuallocator",
    "could not create a",
    "could not execute a primitive",
    "out of memory",
    "cannot allocate memory",
    "bad_alloc",
)
"""How torch, oneDNN, CUDA and the system say it, in errors that are otherwise like all others."""


@contextmanager
def memory_watched(remedy: str) -> Iterator[None]:
    """Turn an error about memory into one sentence that ends with what to do."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if isinstance(error, OutOfMemory) or not _is_about_memory(error):
            raise
        said = " ".join(str(error).split())[:160] or type(error).__name__
        raise OutOfMemory(f"there is too little memory ({said}): {remedy}") from error


def _is_about_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return any(words in str(error).lower() for words in _SAID)

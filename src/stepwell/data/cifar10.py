"""CIFAR-10's own batch files, read without executing what a pickle may contain.

Unpickling calls whatever a file names. The few names that these files use are replaced by stand-ins that only
store their arguments (numpy's own could be made to read memory as objects); anything else is refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.data.pictures import refit
from stepwell.data.source import BadData, DataSet, InMemory, Options

TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
_INSIDE = "cifar-10-batches-py"


def home(folder: Path) -> Path | None:
    """Where the batch files are: the folder itself, or the one that the archive unpacks into it; or None."""
    places = (folder, folder / _INSIDE)
    return next((place for place in places if any((place / name).is_file() for name in (*TRAIN, TEST))), None)


def read(folder: Path, options: Options) -> DataSet:
    """The five training batches, with the test batch held out."""
    folder = home(folder) or folder
    missing = [name for name in (*TRAIN, TEST) if not (folder / name).is_file()]
    if missing:
        raise BadData(
            f"{folder} has some of CIFAR-10's batch files but not {', '.join(missing)}: "
            "unpack cifar-10-python.tar.gz again."
        )
    flips, notes = options.flip_or(True)

    def source(names: tuple[str, ...], name: str) -> InMemory:
        pixels, labels = zip(*(_batch(folder / part) for part in names), strict=True)
        return InMemory(
            refit(torch.cat(pixels), options.size, options.channels),
            name=name,
            labels=torch.cat(labels) if options.labels else None,
            classes=10 if options.labels else 0,
            flips=flips,
        )

    return DataSet(source(TRAIN, "cifar10"), source((TEST,), "cifar10 held out"), notes)


class _Type:
    """Stand-in for numpy.dtype."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignores byte order and alignment: the data are single bytes."""


class _Array:
    """Stand-in for numpy.ndarray."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def rows(self) -> Tensor:
        """The bytes as [N, 3072]."""
        _, shape, kind, fortran, raw = self.state
        if kind.code not in ("u1", b"u1") or fortran or shape[1:] != (3072,):
            raise ValueError(f"an array of shape {shape} that is not rows of 3072 bytes")
        return torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(shape).copy())


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _encode(text: str, *_: object) -> bytes:
    """Python 3's way to pickle bytes for Python 2."""
    return text.encode("latin1")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise BadData(f"asks for {module}.{name}")
        return _ALLOWED[module, name]


def _batch(path: Path) -> tuple[Tensor, Tensor]:
    """Images [N, 3, 32, 32] and labels [N] of one file."""
    try:
        with path.open("rb") as stream:
            stored = _Restricted(stream, encoding="bytes").load()
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in stored.items()}
        pixels = named["data"].rows().reshape(-1, 3, 32, 32)
        labels = torch.tensor(named["labels"], dtype=torch.int64)
    except BadData as error:
        raise BadData(
            f"{path} {error}, which CIFAR-10's files never do: nothing of it was executed. Do not use it; "
            "unpack cifar-10-python.tar.gz again."
        ) from None
    except Exception as error:
        raise BadData(
            f"{path} is not a batch file of CIFAR-10, or is damaged ({type(error).__name__}: {error}): "
            "unpack cifar-10-python.tar.gz again."
        ) from error
    if len(labels) != len(pixels):
        raise BadData(f"{path} has {len(pixels)} images and {len(labels)} labels: unpack it again.")
    return pixels, labels

"""Features of a whole set, written to disk block by block: an interrupted extraction continues.

A block is a fixed range of rows. Rank r of w makes blocks r, r + w, ..., and all ranks read all of them
afterwards: features, and everything computed from them, are the same bits for any number of processes.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stepwell.core.errors import StepwellError
from stepwell.core.ranks import meet, worker_group
from stepwell.evaluate.distances import Moments
from stepwell.evaluate.extractors import Extractor
from stepwell.evaluate.image_sets import ImageSet, chosen_rows, keys_of
from stepwell.evaluate.weights import cache_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray


BLOCK = 256
ABOUT = "about.json"


class ExtractionError(StepwellError):
    """Features that cannot be made, kept or read."""


@dataclass(frozen=True)
class Features:
    """The features of a set of images, on disk."""

    folder: Path
    name: str
    identity: str
    count: int
    dimensions: int

    def blocks(self) -> Iterator[Tensor]:
        """All features in the order of the rows, [256, D] at a time."""
        for number in range(-(-self.count // BLOCK)):
            yield _load(self.folder, number)

    def all(self) -> Tensor:
        """[N, D]."""
        return torch.cat(list(self.blocks()))

    def moments(self) -> Moments:
        """Mean and covariance, streamed in float64."""
        total = Moments()
        for block in self.blocks():
            total.add(block)
        return total


def extract(
    images: ImageSet,
    extractor: Extractor,
    *,
    count: int | None = None,
    batch: int = 32,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Features:
    """The features of a set; what is on disk already, from whatever interrupted run, is not made again."""
    rows, group = chosen_rows(len(images), count), worker_group()
    key = f"{images.digest()} {extractor.identity} {len(rows)}"
    folder = cache_folder() / "features" / blake2b(key.encode(), digest_size=12).hexdigest()
    found = Features(folder, images.name, extractor.identity, len(rows), extractor.dimensions)
    _announce(found)
    blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
    done = 0
    for number in range(group.rank, len(blocks), group.world):
        if not _whole(folder, number, len(blocks[number]), extractor.dimensions):
            _make(images, extractor, folder, number, blocks[number], batch)
        done += len(blocks[number])
        progress(min(done * group.world, len(rows)), len(rows))
    meet(group)
    return found


def _make(
    images: ImageSet, extractor: Extractor, folder: Path, number: int, rows: list[int], batch: int
) -> None:
    parts = [extractor(images.fetch(rows[start : start + batch])) for start in range(0, len(rows), batch)]
    path = _file(folder, number)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file({"features": torch.cat(parts).contiguous()}, temporary)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise ExtractionError(
            f"cannot write features to {folder} ({error}): make room, or set STEPWELL_CACHE to another "
            "folder."
        ) from error


def _announce(found: Features) -> None:
    """A folder of features says what is in it, for people who look at their cache."""
    about = {"images": found.name, "extractor": found.identity, "count": found.count}
    try:
        found.folder.mkdir(parents=True, exist_ok=True)
        (found.folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
    except OSError as error:
        raise ExtractionError(
            f"cannot keep features in {found.folder} ({error.strerror}): set STEPWELL_CACHE to a folder that "
            "can be written."
        ) from error


def _whole(folder: Path, number: int, rows: int, dimensions: int) -> bool:
    """Whether a block is there and readable; a damaged one is made again."""
    if not _file(folder, number).exists():
        return False
    try:
        return _load(folder, number).shape == (rows, dimensions)
    except ExtractionError:
        return False


def _load(folder: Path, number: int) -> Tensor:
    path = _file(folder, number)
    try:
        return load_file(path)["features"]
    except (OSError, SafetensorError, KeyError) as error:
        raise ExtractionError(
            f"{path} is missing or damaged ({error}). Run the same command again; if several machines work "
            "together, set STEPWELL_CACHE to a folder that all of them see."
        ) from error


def _file(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.safetensors"


STATISTICS = "statistics.npz"


class BadStatistics(StepwellError):
    """Statistics that cannot be used, or not with this extractor."""


@dataclass(frozen=True)
class Statistics:
    """Mean [D] and covariance [D, D] of features, in float64."""

    mean: Tensor
    covariance: Tensor
    count: int | None
    """None where a file does not say."""
    identity: str | None
    """Of the extractor; None where a file does not say."""


def has_statistics(path: Path) -> bool:
    """Whether a path is an .npz file with the keys that the field exchanges."""
    return path.suffix.lower() == ".npz" and path.is_file() and {"mu", "sigma"} <= set(keys_of(path))


def read_statistics(path: Path, extractor: Extractor) -> Statistics:
    """`mu` and `sigma` of pytorch-fid, torch-fidelity, guided-diffusion or us, checked against an extractor.

    Only our own files say which extractor made them; of others the dimensions must do.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            mean, covariance = stored["mu"], stored["sigma"]
            count = int(stored["count"]) if "count" in stored else None
            identity = str(stored["extractor"]) if "extractor" in stored else None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadStatistics(f"{path} cannot be read as statistics ({error}).") from error
    if identity is not None and identity != extractor.identity:
        raise BadStatistics(
            f"{path} was made by another extractor ({identity}) than the one in use ({extractor.identity}): "
            "use the same extractor, weights and --resize, or give the reference images themselves."
        )
    _check_shapes(path, mean, covariance, extractor)
    return Statistics(_double(mean), _double(covariance), count, identity)


def statistics_of(features: Features) -> Statistics:
    """Of features on disk, and kept beside them: in the keys of the field, with count and extractor."""
    path = features.folder / STATISTICS
    kept = _kept(path, features)
    if kept is not None:
        return kept
    moments = features.moments()
    made = Statistics(moments.mean, moments.covariance, features.count, features.identity)
    write_statistics(path, made)
    return made


def write_statistics(path: Path, statistics: Statistics) -> None:
    """Replace a file as a whole; pytorch-fid and others read it too."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            arrays: dict[str, Any] = {
                "mu": statistics.mean.numpy(),
                "sigma": statistics.covariance.numpy(),
                "count": statistics.count,
                "extractor": statistics.identity,
            }
            np.savez(stream, **{key: value for key, value in arrays.items() if value is not None})
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BadStatistics(f"cannot write {path} ({error.strerror}).") from error


def _kept(path: Path, features: Features) -> Statistics | None:
    """Statistics from an earlier time; damaged ones are computed again."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            if int(stored["count"]) != features.count or str(stored["extractor"]) != features.identity:
                return None
            mean, covariance = _double(stored["mu"]), _double(stored["sigma"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return Statistics(mean, covariance, features.count, features.identity)


def _check_shapes(path: Path, mean: NDArray[Any], covariance: NDArray[Any], extractor: Extractor) -> None:
    wanted = extractor.dimensions
    if mean.shape != (wanted,) or covariance.shape != (wanted, wanted):
        raise BadStatistics(
            f"{path} has statistics of another extractor: mu is {list(mean.shape)} and sigma "
            f"{list(covariance.shape)}, and {extractor.name} has {wanted} features. Choose the extractor "
            "that made it."
        )
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise BadStatistics(f"{path} has numbers that are not finite in mu or sigma.")


def _double(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))

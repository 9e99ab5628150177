"""Features of a set of images on disk, and their statistics; an interrupted extraction continues.

A block is a fixed range of rows. Rank r of w extracts blocks r, r + w, ..., then all ranks read all blocks:
features, and everything computed from them, have the same bits for any number of processes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from stepwell.core.errors import StepwellError
from stepwell.core.ranks import meet, worker_group
from stepwell.data.arrays import keys_of, read_arrays
from stepwell.evaluate.distances import Moments
from stepwell.evaluate.extractors import Extractor
from stepwell.evaluate.image_sets import ImageSet, chosen_rows
from stepwell.evaluate.weights import cache_folder
from stepwell.runs.io import write_atomic, write_json

BLOCK = 256
ABOUT, STATISTICS = "about.json", "statistics.npz"


class ExtractionError(StepwellError):
    """Features that cannot be extracted, stored or read."""


@dataclass(frozen=True)
class Features:
    """The stored features of a set of images."""

    folder: Path
    name: str
    identity: str
    count: int
    dimensions: int

    def blocks(self) -> Iterator[Tensor]:
        """All features in order, [256, D] at a time."""
        for number in range(-(-self.count // BLOCK)):
            yield _load(self.folder, number)

    def all(self) -> Tensor:
        """All features [N, D]."""
        return torch.cat(list(self.blocks()))

    def moments(self) -> Moments:
        """Mean and covariance, computed block by block in float64."""
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
    """The features of a set; blocks that are on disk already are not extracted again."""
    rows, group = chosen_rows(len(images), count), worker_group()
    key = f"{images.digest()} {extractor.identity} {len(rows)}"
    folder = cache_folder() / "features" / blake2b(key.encode(), digest_size=12).hexdigest()
    features = Features(folder, images.name, extractor.identity, len(rows), extractor.dimensions)
    _write_about(features)
    blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
    done = 0
    for number in range(group.rank, len(blocks), group.world):
        if not _is_stored(folder, number, len(blocks[number]), extractor.dimensions):
            _extract_block(images, extractor, folder, number, blocks[number], batch)
        done += len(blocks[number])
        progress(min(done * group.world, len(rows)), len(rows))
    meet(group)
    return features


def _extract_block(
    images: ImageSet, extractor: Extractor, folder: Path, number: int, rows: list[int], batch: int
) -> None:
    parts = [extractor(images.fetch(rows[start : start + batch])) for start in range(0, len(rows), batch)]
    try:
        write_atomic(_file(folder, number), save({"features": torch.cat(parts).contiguous()}))
    except OSError as error:
        raise ExtractionError(
            f"cannot write features to {folder} ({error}): free some space, or set STEPWELL_CACHE to another "
            "folder."
        ) from error


def _write_about(features: Features) -> None:
    """A description of the folder, for people who look into their cache."""
    about = {"images": features.name, "extractor": features.identity, "count": features.count}
    try:
        features.folder.mkdir(parents=True, exist_ok=True)
        write_json(features.folder / ABOUT, about)
    except OSError as error:
        raise ExtractionError(
            f"cannot store features in {features.folder} ({error.strerror}): set STEPWELL_CACHE to a folder "
            "that can be written."
        ) from error


def _is_stored(folder: Path, number: int, rows: int, dimensions: int) -> bool:
    """Whether a block exists and is readable; a damaged one is extracted again."""
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


class BadStatistics(StepwellError):
    """Statistics that cannot be read, or do not fit the extractor."""


@dataclass(frozen=True)
class Statistics:
    """Mean [D] and covariance [D, D] of features, in float64."""

    mean: Tensor
    covariance: Tensor
    count: int | None
    """None if the file does not say."""
    identity: str | None
    """The extractor's identity; None if the file does not say."""


def has_statistics(path: Path) -> bool:
    """Whether a path is an .npz file with `mu` and `sigma`."""
    return path.suffix.lower() == ".npz" and path.is_file() and {"mu", "sigma"} <= set(keys_of(path))


def read_statistics(path: Path, extractor: Extractor) -> Statistics:
    """`mu` and `sigma` as written by pytorch-fid, torch-fidelity, guided-diffusion or stepwell.

    Only our own files name their extractor; for others only the dimensions can be checked.
    """
    stored = _load_statistics(path)
    if stored.identity not in (None, extractor.identity):
        raise BadStatistics(
            f"{path} was made by another extractor ({stored.identity}) than the one in use "
            f"({extractor.identity}): use the same extractor, weights and --resize, or give the images."
        )
    size = extractor.dimensions
    if stored.mean.shape != (size,) or stored.covariance.shape != (size, size):
        raise BadStatistics(
            f"{path} has statistics of another extractor: mu is {list(stored.mean.shape)} and sigma "
            f"{list(stored.covariance.shape)}, and {extractor.name} has {size} features. Choose the "
            "extractor that made it."
        )
    if wrong := _not_of_features(stored):
        raise BadStatistics(f"{path} {wrong}: make the statistics again from the images.")
    return stored


_ARRAYS = ("mu", "sigma")
_KINDS = {"mu": "fiu", "sigma": "fiu", "count": "iu", "extractor": "U"}
"""Numpy's letters for the numbers or the text under each name."""
_ROUNDING = 1e-5
"""Share of its trace by which a covariance may be off: many are stored in float32."""


def _not_of_features(stored: Statistics) -> str:
    """Why a mean [D] and a matrix [D, D] cannot be those of any features, or nothing."""
    matrix = stored.covariance
    if not (stored.mean.isfinite().all() and matrix.isfinite().all()):
        return "has numbers that are not finite in mu or sigma"
    tolerance = _ROUNDING * matrix.trace()
    if bool(((matrix - matrix.T).abs() > tolerance.abs()).any()):
        return "has a sigma that is not symmetric, so it is no covariance"
    # With a little more on its diagonal a covariance has a Cholesky factor, also where it is singular.
    least = torch.finfo(matrix.dtype).tiny
    if bool(torch.linalg.cholesky_ex(matrix + torch.eye(len(matrix)).to(matrix) * (tolerance + least)).info):
        return "has a sigma with negative variances, so it is no covariance"
    return ""


def statistics_of(features: Features) -> Statistics:
    """The statistics of stored features; they are computed once and stored beside them."""
    path = features.folder / STATISTICS
    try:
        stored = _load_statistics(path)
        fits = (
            stored.mean.shape == (features.dimensions,)
            and stored.covariance.shape == (features.dimensions,) * 2
        )
        if fits and (stored.count, stored.identity) == (features.count, features.identity):
            return stored
    except StepwellError:
        pass  # Missing or damaged.
    moments = features.moments()
    statistics = Statistics(moments.mean, moments.covariance, features.count, features.identity)
    write_statistics(path, statistics)
    return statistics


def write_statistics(path: Path, statistics: Statistics) -> None:
    """Write an .npz atomically; pytorch-fid and others read it too."""
    arrays: dict[str, Any] = {
        "mu": statistics.mean.numpy(),
        "sigma": statistics.covariance.numpy(),
        "count": statistics.count,
        "extractor": statistics.identity,
    }
    content = io.BytesIO()
    np.savez(content, **{key: value for key, value in arrays.items() if value is not None})
    try:
        write_atomic(path, content.getvalue())
    except OSError as error:
        raise BadStatistics(f"cannot write {path} ({error.strerror}).") from error


def _load_statistics(path: Path) -> Statistics:
    stored = read_arrays(path, ("mu", "sigma", "count", "extractor"))
    for key, kinds in _KINDS.items():
        if key in stored and (
            stored[key].dtype.kind not in kinds or (key not in _ARRAYS and stored[key].ndim)
        ):
            raise BadStatistics(f"{path}: {key} holds {stored[key].dtype}, so it has no statistics.")
    if not all(key in stored for key in _ARRAYS):
        raise BadStatistics(f"{path} has no statistics: it needs mu and sigma.")
    mean, covariance = (
        torch.from_numpy(np.ascontiguousarray(stored[key], dtype=np.float64)) for key in _ARRAYS
    )
    count = int(stored["count"]) if "count" in stored else None
    identity = str(stored["extractor"]) if "extractor" in stored else None
    return Statistics(mean, covariance, count, identity)

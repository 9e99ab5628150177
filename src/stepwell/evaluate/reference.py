"""What images are compared with: features of a set, or statistics that somebody computed before."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stepwell.core.errors import StepwellError
from stepwell.evaluate.extraction import Features
from stepwell.evaluate.extractors import Extractor
from stepwell.evaluate.image_sets import keys_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

"""Where the weights of feature networks come from: a path, a variable, a cache, or one download.

A file is known by its sha256. One that is not known is taken if its tensors fit, and its digest becomes part
of what the features are called.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from stepwell.core.errors import StepwellError

Shapes = Mapping[str, tuple[int, ...]]


class WeightsError(StepwellError):
    """Weights that are not there, or not what they should be."""


@dataclass(frozen=True)
class Origin:
    """The canonical file of a network, and how a user points to another one."""

    variable: str
    files: tuple[str, ...]
    """Names under which caches hold it; the first is what we write."""
    url: str
    sha256: str
    """Or the first digits of it, where its authors publish no more."""


ORIGINS = {
    "inception": Origin(
        "STEPWELL_INCEPTION",
        ("pt_inception-2015-12-05-6726825d.pth", "weights-inception-2015-12-05-6726825d.pth"),
        "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth",
        "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2",
    ),
    "resnet20-cifar10": Origin(
        "STEPWELL_RESNET20_CIFAR10",
        ("resnet20-12fca82f.th",),
        "https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models/resnet20-12fca82f.th",
        "12fca82f",
    ),
}


def cache_folder() -> Path:
    """STEPWELL_CACHE, or `stepwell` in the user's cache folder."""
    given = os.environ.get("STEPWELL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given).expanduser() if given else Path(base) / "stepwell"


def find(name: str, given: str | Path | None = None) -> Path:
    """The weights file of a network: the one given, the variable's, a cached one, or a download."""
    origin = ORIGINS[name]
    variable = os.environ.get(origin.variable)
    for path, source in ((given, "--weights"), (variable, origin.variable)):
        if path:
            return _existing(Path(path).expanduser(), source)
    for folder in _caches():
        for file in origin.files:
            if (folder / file).is_file():
                _check_digest(folder / file, origin)
                return folder / file
    return _download(name, origin)


def read(name: str, path: Path, shapes: Shapes) -> tuple[dict[str, Tensor], str]:
    """The tensors of a weights file, and its sha256; what does not fit is said by name."""
    if any(path.name == file for file in ORIGINS[name].files):
        _check_digest(path, ORIGINS[name])
    stored = _tensors(path)
    missing = [key for key in shapes if key not in stored]
    wrong = [key for key in shapes if key in stored and tuple(stored[key].shape) != tuple(shapes[key])]
    if missing or wrong:
        found = f"{len(stored)} tensors, such as {', '.join(list(stored)[:3]) or 'none'}"
        raise WeightsError(
            f"{path} is not a weights file of {name}: {_amiss(shapes, stored, missing, wrong)}. It holds "
            f"{found}. Give {ORIGINS[name].files[0]}, or a safetensors file with the same names."
        )
    return {key: stored[key] for key in shapes}, sha256(path)


def sha256(path: Path) -> str:
    """The digest of a file's contents."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _amiss(shapes: Shapes, stored: Mapping[str, Tensor], missing: list[str], wrong: list[str]) -> str:
    if missing:
        return f"{len(missing)} of its {len(shapes)} tensors are missing, such as {missing[0]}"
    key = wrong[0]
    return f"{key} has shape {list(stored[key].shape)} and must have {list(shapes[key])}"


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        raise WeightsError(f"{path} cannot be read as weights ({reason}): is it cut off?") from error
    inner = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else {}
    # akamaster's files were written by DataParallel.
    return {k.removeprefix("module."): v for k, v in inner.items() if isinstance(v, Tensor)}


def _caches() -> tuple[Path, ...]:
    return (cache_folder(), Path(torch.hub.get_dir()) / "checkpoints")


def _existing(path: Path, source: str) -> Path:
    if not path.is_file():
        raise WeightsError(f"{source} says {path}, and there is no such file.")
    return path


def _check_digest(path: Path, origin: Origin) -> None:
    found = sha256(path)
    if not found.startswith(origin.sha256):
        raise WeightsError(
            f"{path} is damaged or another file: its sha256 is {found}, and must be "
            f"{origin.sha256}{'...' if len(origin.sha256) < 64 else ''}. Delete it, and it is fetched again."
        )


def _download(name: str, origin: Origin) -> Path:
    folder = cache_folder()
    path = folder / origin.files[0]
    part = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(origin.url, timeout=30) as source,
            tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}.", delete=False) as target,
        ):
            part = Path(target.name)
            while block := source.read(1 << 20):
                target.write(block)
        _check_digest(part, origin)
        part.replace(path)
    except OSError as error:
        raise WeightsError(
            f"the weights of {name} are not here and cannot be fetched ({error}). Get the file "
            f"{origin.files[0]} from {origin.url} and put it into {folder}, or set {origin.variable} to its "
            "path, or give --weights FILE."
        ) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    return path

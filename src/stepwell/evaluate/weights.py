"""The weights of feature networks: from a path, an environment variable, a cache, or one download.

Files with the canonical name are checked by sha256. Others are accepted if their tensors fit; the digest is
part of the extractor's identity.
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
from stepwell.core.reading import place

Shapes = Mapping[str, tuple[int, ...]]


class WeightsError(StepwellError):
    """Weights that are missing, damaged or of another network."""


@dataclass(frozen=True)
class Origin:
    """The canonical weights file of a network, and the variable that points to another one."""

    variable: str
    files: tuple[str, ...]
    """File names in caches; downloads get the first."""
    url: str
    sha256: str
    """The digest, or its first digits where no more are published."""


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
    chosen = os.environ.get("STEPWELL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return place(chosen) if chosen else Path(base) / "stepwell"


def find(name: str, weights: str | Path | None = None) -> Path:
    """The weights file of a network: the given one, the variable's, a cached one, or a download."""
    origin = ORIGINS[name]
    variable = os.environ.get(origin.variable)
    for chosen, option in ((weights, "--weights"), (variable, origin.variable)):
        if chosen:
            path = place(chosen)
            if not path.is_file():
                raise WeightsError(f"{option} is {path}, and there is no such file.")
            return path
    for folder in (cache_folder(), Path(torch.hub.get_dir()) / "checkpoints"):
        for file in origin.files:
            if (folder / file).is_file():
                _check_digest(folder / file, origin)
                return folder / file
    return _download(name, origin)


def read(name: str, path: Path, shapes: Shapes) -> tuple[dict[str, Tensor], str]:
    """The tensors of a weights file and its sha256; raises WeightsError if they do not fit the shapes."""
    if path.name in ORIGINS[name].files:
        _check_digest(path, ORIGINS[name])
    stored = _tensors(path)
    missing = [key for key in shapes if key not in stored]
    wrong = [key for key in shapes if key in stored and tuple(stored[key].shape) != tuple(shapes[key])]
    if missing or wrong:
        if missing:
            problem = f"{len(missing)} of its {len(shapes)} tensors are missing, such as {missing[0]}"
        else:
            shape, needed = (list(sizes) for sizes in (stored[wrong[0]].shape, shapes[wrong[0]]))
            problem = f"{wrong[0]} has shape {shape} and must have {needed}"
        raise WeightsError(
            f"{path} is not a weights file of {name}: {problem}. It holds {len(stored)} tensors, such as "
            f"{', '.join(list(stored)[:3]) or 'none'}. Give {ORIGINS[name].files[0]}, or a safetensors file "
            "with the same names."
        )
    return {key: stored[key] for key in shapes}, sha256(path)


def sha256(path: Path) -> str:
    """The digest of a file's contents."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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


def _check_digest(path: Path, origin: Origin) -> None:
    digest = sha256(path)
    if not digest.startswith(origin.sha256):
        raise WeightsError(
            f"{path} is damaged or another file: its sha256 is {digest}, and must be "
            f"{origin.sha256}{'...' if len(origin.sha256) < 64 else ''}. Delete it to download it again."
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
            f"the weights of {name} are missing and cannot be downloaded ({error}). Get the file "
            f"{origin.files[0]} from {origin.url} and put it into {folder}, or set {origin.variable} to its "
            "path, or give --weights FILE."
        ) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    return path

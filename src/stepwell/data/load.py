"""Images from wherever they are: one word says which."""

from __future__ import annotations

import difflib
import os
from importlib.util import find_spec
from pathlib import Path

from stepwell.core.errors import Unsupported
from stepwell.data.only_classes import parsed as only_classes_of
from stepwell.data.only_classes import restrict
from stepwell.data.options import Options
from stepwell.data.source import BadData, DataSet

EMBEDDED = ("fashion16",)
_HUB = "hub:"


def load(
    spec: str,
    *,
    size: int | None = None,
    channels: int | None = None,
    labels: bool = False,
    flips: bool | None = None,
    strict: bool = False,
    workers: int = 2,
    memory_bytes: int = 2 << 30,
    only_classes: str = "",
) -> DataSet:
    """`fashion16`, a folder of images or latents, an .npz, a folder of CIFAR-10's batch files or `hub:NAME`.

    size: height and width; resized by the shorter side and cropped. Default: as stored, if square.
    channels: 1 or 3. Default: as stored; a folder is grey if all its images are.
    labels: with classes, from sub-folders, arrays or columns; data without any are then an error.
    flips: whether mirror images are the same data. Default: yes for folders, CIFAR-10 and hub, no for
    fashion16 and npz.
    strict: unreadable files are an error; they are skipped and noted otherwise.
    workers: threads that decode; their number changes no pixel.
    memory_bytes: folders and hub datasets that need more are decoded on demand.
    only_classes: numbers of classes such as 5,7,9; the images of all others are left out.
    """
    chosen = only_classes_of(only_classes)
    options = Options(size, channels, labels or bool(chosen), flips, strict, workers, memory_bytes)
    _need_the_extra()
    found = _read(spec, options)
    return restrict(found, chosen, labels=labels) if chosen else found


def _read(spec: str, options: Options) -> DataSet:
    if spec in EMBEDDED:
        from stepwell.data import fashion16

        return fashion16.read(options)
    if spec.startswith(_HUB):
        from stepwell.data import hub

        return hub.read(spec[len(_HUB) :], options)
    return _from_path(spec, options)


def _need_the_extra() -> None:
    """Readers import numpy and Pillow; they are imported where they are used, after this check."""
    packages = {"numpy": "numpy", "PIL": "Pillow"}
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    if missing:
        raise Unsupported(
            f"reading images needs {' and '.join(missing)}, not installed: pip install 'stepwell[train]'."
        )


def _from_path(spec: str, options: Options) -> DataSet:
    path = Path(spec).expanduser()
    if not spec or not path.exists():
        raise _nothing_there(spec, path)
    if path.is_dir():
        from stepwell.data import cifar10, folder, latent_manifest, latents

        if latent_manifest.is_cache(path):
            return latents.read(path, options)
        batches = cifar10.home(path)
        return folder.read(path, options) if batches is None else cifar10.read(batches, options)
    if path.suffix.lower() != ".npz":
        raise BadData(
            f"{spec!r} is a file that is not .npz: give the folder that holds the images (unpack archives "
            "first), or an .npz with an array called images."
        )
    from stepwell.data import npz

    return npz.read(path, options)


def _nothing_there(spec: str, path: Path) -> BadData:
    names = list(EMBEDDED)
    if spec and path.parent.is_dir() and os.access(path.parent, os.R_OK):
        names += [str(path.with_name(entry.name)) for entry in path.parent.iterdir()]
    near = difflib.get_close_matches(str(path), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return BadData(
        f"{spec!r} is no data: there is no file or folder at {str(path.absolute())!r}, and it is not "
        f"embedded ({', '.join(EMBEDDED)}) nor a Hugging Face dataset (hub:NAME).{hint}"
    )

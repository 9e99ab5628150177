"""Some classes of a data set: what a base is trained on, and what it is then fine-tuned on."""

from __future__ import annotations

import ast
import difflib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.data.source import BadData, DataSet, ExampleSource, ImageSource, Options, Part


def parsed(given: str) -> tuple[int, ...]:
    """The classes in `5,7,9`, in order and once each; none if nothing is given."""
    try:
        found = ast.literal_eval(given) if given.strip() else ()
    except (ValueError, SyntaxError):
        found = None
    numbers = (found,) if type(found) is int else found
    if not isinstance(numbers, tuple | list) or not all(type(n) is int and n >= 0 for n in numbers):
        raise InvalidParameter(f"only_classes must be numbers of classes such as 5,7,9, not {given!r}.")
    return tuple(sorted(set(numbers)))


def restrict(data: DataSet, classes: tuple[int, ...], *, labels: bool) -> DataSet:
    """The images of these classes, in training and held out; `labels` tells whether theirs are kept."""
    if data.latents is not None:
        raise BadData(
            f"{data.train.name} has latents, and only_classes chooses images: encode the images that are "
            "wanted into a cache of their own."
        )
    lost = [number for number in classes if number >= data.train.classes]
    if lost:
        raise BadData(
            f"{data.train.name} has the classes 0 to {data.train.classes - 1}, not {lost[0]}: change "
            "only_classes."
        )
    train, held_out = (_part(source, classes, labels) for source in (data.train, data.held_out))
    listed = ", ".join(map(str, classes))
    note = f"only {len(train):,} of {len(data.train):,} images, those of the classes {listed}"
    return DataSet(train, held_out, (*data.notes, note))


def _part(source: ExampleSource, classes: tuple[int, ...], labels: bool) -> Part:
    assert source.labels is not None, "they were asked for"
    rows: Tensor = torch.isin(source.labels, torch.tensor(classes)).nonzero().flatten()
    if not len(rows):
        raise BadData(f"{source.name} has no image of the classes {', '.join(map(str, classes))}.")
    found = Part(cast(ImageSource, source), rows, source.name)
    if not labels:
        found.labels, found.classes = None, 0
    return found


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
    chosen = parsed(only_classes)
    options = Options(size, channels, labels or bool(chosen), flips, strict, workers, memory_bytes)
    _need_the_extra()
    found = _read(spec, options)
    return restrict(found, chosen, labels=labels) if chosen else found


def _read(spec: str, options: Options) -> DataSet:
    if spec in EMBEDDED:
        from stepwell.data import npz

        return npz.read_fashion16(options)
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
        from stepwell.data import cifar10, folder, latents
        from stepwell.data import latent_cache as latent_manifest

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

"""Load data by name or path: fashion16, a folder of images or latents, an .npz, CIFAR-10, a hub dataset."""

from __future__ import annotations

import difflib
import os
from importlib.util import find_spec
from typing import Literal, cast

import torch

from stepwell.core.errors import Unsupported, quoted
from stepwell.core.reading import place
from stepwell.data.classes import parse_classes
from stepwell.data.source import BadData, DataSet, ExampleSource, ImageSource, Options, Part

Kind = Literal["fashion16", "hub", "latents", "cifar10", "folder", "npz"]
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
    captions: bool = False,
) -> DataSet:
    """`fashion16`, a folder of images or latents, an .npz, a folder of CIFAR-10's batch files or `hub:NAME`.

    size: height and width; resized by the shorter side and cropped. Default: as stored, if square.
    channels: 1 or 3. Default: as stored; a folder is grey if all its images are.
    labels: with classes, from sub-folders, arrays or columns; data without any are then an error.
    flips: random horizontal flips. Default: yes for folders, CIFAR-10 and hub, no for
    fashion16 and npz.
    strict: unreadable files are an error; they are skipped and noted otherwise.
    workers: threads that decode; their number changes no pixel.
    memory_bytes: folders and hub datasets that need more are decoded on demand.
    only_classes: numbers of classes such as 5,7,9; the images of all others are left out.
    captions: labels are numbers of captions, from .txt files beside images or metadata.jsonl.
    """
    classes = parse_classes(only_classes)
    options = Options(size, channels, labels or bool(classes), flips, strict, workers, memory_bytes, captions)
    if captions and options.labels:
        raise BadData("images have captions or classes here, not both: leave labels and only_classes out.")
    _require_packages()
    data = _read(spec, options)
    return _restrict(data, classes, keep_labels=labels) if classes else data


def kind_of(spec: str) -> Kind | None:
    """Which reader a data source needs; None if there is nothing at that path."""
    if spec == "fashion16":
        return "fashion16"
    if spec.startswith(_HUB):
        return "hub"
    path = place(spec)
    if not spec or not path.exists():
        return None
    if path.is_dir():
        from stepwell.data import cifar10, latent_cache

        if latent_cache.is_latent_cache(path):
            return "latents"
        return "folder" if cifar10.home(path) is None else "cifar10"
    if path.suffix.lower() != ".npz" or not path.is_file():
        raise BadData(
            f"{spec!r} is a file that is not .npz: give the folder that holds the images (unpack archives "
            "first), or an .npz with an array called images."
        )
    return "npz"


def not_found(spec: str) -> BadData:
    """The error for data that do not exist, with the nearest name."""
    path, names = place(spec), ["fashion16"]
    if spec and path.parent.is_dir() and os.access(path.parent, os.R_OK):
        names += [str(path.with_name(entry.name)) for entry in path.parent.iterdir()]
    near = difflib.get_close_matches(str(path), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return BadData(
        f"data {quoted(spec)} not found: there is no file or folder at {quoted(str(path.absolute()))}, and "
        f"it is neither embedded (fashion16) nor a Hugging Face dataset (hub:NAME).{hint}"
    )


def _require_packages() -> None:
    """Readers import numpy and Pillow, which torch does not install."""
    packages = {"numpy": "numpy", "PIL": "Pillow"}
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    if missing:
        raise Unsupported(
            f"reading images needs {' and '.join(missing)}, not installed: pip install 'stepwell[train]'."
        )


def _read(spec: str, options: Options) -> DataSet:
    # Only the reader that is needed is imported.
    kind, path = kind_of(spec), place(spec)
    if options.captions and kind not in ("folder", "latents", None):
        raise BadData(
            f"data={spec} has no captions: they are read from folders of images, with a .txt beside each "
            "image or a metadata.jsonl."
        )
    match kind:
        case "fashion16" | "npz":
            from stepwell.data import npz

            return npz.read_fashion16(options) if kind == "fashion16" else npz.read(path, options)
        case "hub":
            from stepwell.data import hub

            return hub.read(spec.removeprefix(_HUB), options)
        case "latents":
            from stepwell.data import latents

            return latents.read(path, options)
        case "cifar10":
            from stepwell.data import cifar10

            return cifar10.read(path, options)
        case "folder":
            from stepwell.data import folder

            return folder.read(path, options)
        case None:
            raise not_found(spec)


def _restrict(data: DataSet, classes: tuple[int, ...], *, keep_labels: bool) -> DataSet:
    """Only the images of these classes, in training and held out."""
    if data.latents is not None:
        raise BadData(
            f"{data.train.name} has latents, and only_classes selects images: encode the wanted images into "
            "a folder of their own."
        )
    unknown = [number for number in classes if number >= data.train.classes]
    if unknown:
        raise BadData(
            f"{data.train.name} has the classes 0 to {data.train.classes - 1}, not {unknown[0]}: change "
            "only_classes."
        )
    train, held_out = (_of_classes(source, classes, keep_labels) for source in (data.train, data.held_out))
    listed = ", ".join(map(str, classes))
    note = f"only {len(train):,} of {len(data.train):,} images, those of the classes {listed}"
    return DataSet(train, held_out, (*data.notes, note), class_names=data.class_names if keep_labels else ())


def _of_classes(source: ExampleSource, classes: tuple[int, ...], keep_labels: bool) -> Part:
    assert source.labels is not None, "only_classes reads them"
    rows = torch.isin(source.labels, torch.tensor(classes)).nonzero().flatten()
    if not len(rows):
        raise BadData(f"{source.name} has no image of the classes {', '.join(map(str, classes))}.")
    part = Part(cast(ImageSource, source), rows, source.name)
    if not keep_labels:
        part.labels, part.classes = None, 0
    return part

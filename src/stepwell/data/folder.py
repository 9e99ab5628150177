"""A folder of images of any size, mode and format, with all its sub-folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image
from torch import Tensor

from stepwell.data.captions import Captions, holds_captions, numbered
from stepwell.data.pictures import listed, opened, scan
from stepwell.data.source import BadData, DataSet, Options, split


class Files:
    """The files below a folder, in the order of their names on every machine."""

    things = "files"

    def __init__(self, root: Path, paths: Sequence[str] | None = None) -> None:
        self.name = str(root)
        self.paths = sorted(_below(root) if paths is None else paths)
        self._root = root

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, row: int) -> Image.Image:
        path = self._root / self.paths[row]
        if not path.is_file():
            # A pipe would wait for ever; a link to nothing says so when it is opened.
            path.stat()
            raise BadData("a pipe or a device")
        return opened(path)

    def title(self, row: int) -> str:
        return os.fsencode(self.paths[row]).decode("utf-8", "replace")


def read(root: Path, options: Options) -> DataSet:
    """The images below `root`; with labels, its first level of sub-folders are the classes.

    With captions, files that hold them lie beside the images.
    """
    files = Files(root)
    if not len(files):
        raise BadData(
            f"{files.name} has no files in it or in its sub-folders (hidden ones are skipped): "
            "give a folder with images."
        )
    flips, flip_notes = options.flip_or(True)
    if options.captions:
        captions = Captions(root, files.paths)
        files.paths = [path for path in files.paths if not holds_captions(path)]
        images = scan(files, options)
        numbers, texts = numbered(captions.of([files.paths[row] for row in images.rows]))
        notes = (*images.notes, *flip_notes, f"{len(texts)} different captions, such as: {texts[0][:80]}")
        return replace(split(images.source(numbers, len(texts), flips), notes), captions=texts)
    images = scan(files, options)
    if options.labels:
        _refuse_images_without_class(files, images.rows)
    labels, names = _classes(files, images.rows) if options.labels else (None, [])
    class_notes = [f"{len(names)} classes: {listed(names, 10)}"] if names else []
    notes = (*images.notes, *flip_notes, *class_notes)
    return split(images.source(labels, len(names), flips), notes, tuple(names))


def pictures(path: Path, shape: tuple[int, int, int]) -> tuple[Tensor, tuple[str, ...]]:
    """One picture or all of a folder as uint8 [N, C, H, W] of a shape C, H, W, and what to tell of them."""
    files = Files(path.parent, [path.name]) if path.is_file() else Files(path)
    if not len(files):
        raise BadData(f"{path} has no files in it: give a picture, or a folder of pictures.")
    channels, height, _ = shape
    readable = scan(files, Options(size=height, channels=channels, memory_bytes=1 << 50))
    assert readable.pixels is not None
    return readable.pixels, readable.notes


def _below(root: Path) -> list[str]:
    def refuse(error: OSError) -> None:
        raise BadData(
            f"{error.filename} cannot be read ({error.strerror}): make it readable, or move it away."
        )

    paths, seen = list[str](), {root.resolve()}
    for folder, folders, names in os.walk(root, followlinks=True, onerror=refuse):
        # In one order on every machine: a folder that links lead to several times is read where it is first.
        folders[:] = [
            name for name in sorted(folders) if not name.startswith(".") and _is_new(folder, name, seen)
        ]
        here = Path(folder).relative_to(root)
        paths += [(here / name).as_posix() for name in names if not name.startswith(".")]
    return paths


def _is_new(folder: str, name: str, seen: set[Path]) -> bool:
    """Whether a sub-folder, or the folder that a link leads to, was not read yet; from now on it is."""
    target = Path(folder, name).resolve()
    is_new = target not in seen
    seen.add(target)
    return is_new


def _refuse_images_without_class(files: Files, rows: list[int]) -> None:
    loose = [files.title(row) for row in rows if "/" not in files.paths[row]]
    if loose:
        raise BadData(
            f"{files.name}: with labels every image lies in a sub-folder that names its class, and "
            f"{len(loose)} of {len(rows)} do not: {listed(loose)}. Move them, or train without labels."
        )


def _classes(files: Files, rows: list[int]) -> tuple[list[int], list[str]]:
    folders = [files.paths[row].split("/", 1)[0] for row in rows]
    names = sorted(set(folders))
    numbers = {name: number for number, name in enumerate(names)}
    return [numbers[folder] for folder in folders], names

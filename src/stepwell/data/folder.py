"""A folder of images of any size, mode and format, with all its sub-folders."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image

from stepwell.data.pictures import listed, scan
from stepwell.data.source import BadData, DataSet, Options, split


class Files:
    """The files below a folder, in the order of their names on every machine."""

    things = "files"

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self.paths = sorted(_below(root))
        self._root = root

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, row: int) -> Image.Image:
        return Image.open(self._root / self.paths[row])

    def title(self, row: int) -> str:
        return os.fsencode(self.paths[row]).decode("utf-8", "replace")


def read(root: Path, options: Options) -> DataSet:
    """The images below `root`; with labels, its first level of sub-folders are the classes."""
    files = Files(root)
    if not len(files):
        raise BadData(
            f"{files.name} has no files in it or in its sub-folders (hidden ones are skipped): "
            "give a folder with images."
        )
    images = scan(files, options)
    if options.labels:
        _refuse_images_without_class(files, images.rows)
    labels, names = _classes(files, images.rows) if options.labels else (None, [])
    flips, flip_notes = options.flip_or(True)
    class_notes = [f"{len(names)} classes: {listed(names, 10)}"] if names else []
    notes = (*images.notes, *flip_notes, *class_notes)
    return split(images.source(labels, len(names), flips), notes, tuple(names))


def _below(root: Path) -> list[str]:
    def refuse(error: OSError) -> None:
        raise BadData(
            f"{error.filename} cannot be read ({error.strerror}): make it readable, or move it away."
        )

    paths = list[str]()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and not _loops(folder, name)]
        here = Path(folder).relative_to(root)
        paths += [(here / name).as_posix() for name in names if not name.startswith(".")]
    return paths


def _loops(folder: str, name: str) -> bool:
    """Whether a sub-folder is a link to a folder that contains it."""
    inside, target = Path(folder).resolve(), Path(folder, name).resolve()
    return inside == target or target in inside.parents


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

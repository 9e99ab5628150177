"""Captions of a folder of images: a .txt beside each, or metadata.jsonl as `datasets` reads it.

They are numbered like classes: the label of an image is the number of its caption among all different ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any

from stepwell.core.errors import quoted
from stepwell.core.reading import regular_file, text_of
from stepwell.data.source import BadData

METADATA = "metadata.jsonl"


def holds_captions(path: str) -> bool:
    """Whether a file beside images is read for captions, so that it is no unreadable image."""
    return path.endswith(".txt") or PurePosixPath(path).name == METADATA


class Captions:
    """The captions below a folder, by the paths of its files."""

    def __init__(self, root: Path, paths: Sequence[str]) -> None:
        self._root = root
        self._files = {path for path in paths if path.endswith(".txt")}
        self._listed = dict[str, str]()
        for path in paths:
            if PurePosixPath(path).name == METADATA:
                self._listed |= _listed(root, path)

    def of(self, images: Sequence[str]) -> list[str]:
        """One caption for each image, or an error that counts those without."""
        found = [self._caption(image) for image in images]
        missing = [image for image, caption in zip(images, found, strict=True) if caption is None]
        if missing:
            shown = ", ".join([*missing[:5], *["..."] * (len(missing) > 5)])
            raise BadData(
                f"{self._root}: {len(missing)} of {len(images)} images have no caption: {shown}. Write a "
                f".txt of the same name beside each, or file_name and text into {METADATA}, or move them."
            )
        return [caption for caption in found if caption is not None]

    def _caption(self, image: str) -> str | None:
        beside = str(PurePosixPath(image).with_suffix(".txt"))
        if image in self._listed:
            return self._listed[image]
        return one_line(text_of(self._root / beside)) if beside in self._files else None


def numbered(captions: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
    """The number of each caption, and the different ones in the order in which they come first."""
    numbers: dict[str, int] = {}
    labels = [numbers.setdefault(caption, len(numbers)) for caption in captions]
    return labels, tuple(numbers)


def captions_digest(captions: Sequence[str]) -> str:
    """16 hexadecimal digits of some captions in their order."""
    return blake2b("\n".join(captions).encode(), digest_size=8).hexdigest()


def one_line(text: str) -> str:
    """A text with single spaces for all white space."""
    return " ".join(text.split())


def _listed(root: Path, path: str) -> dict[str, str]:
    """The captions in a metadata.jsonl, by paths below the root; its own are relative to its folder."""
    home, captions = PurePosixPath(path).parent, dict[str, str]()
    try:
        with regular_file(root / path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    name, text = _entry(f"{root / path}, line {number}", line)
                    captions[str(home / name)] = text
    except UnicodeDecodeError as error:
        raise BadData(f"{root / path} is not UTF-8 text ({error.reason}): save it as such.") from None
    return captions


def _entry(where: str, line: str) -> tuple[str, str]:
    try:
        values: Any = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise BadData(f'{where} is no JSON object: write {{"file_name": "0001.png", "text": "..."}}.')
    for key in ("file_name", "text"):
        if not isinstance(values.get(key), str):
            raise BadData(
                f"{where} has no {key}, only {quoted(', '.join(values))}: write the image's path as "
                "file_name and its caption as text."
            )
    return values["file_name"], one_line(values["text"])

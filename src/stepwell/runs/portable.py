"""What a record may say of where it was made: the kind of machine, and no place on it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_ABSOLUTE = re.compile(r"""(^|[\s"'`=,:;(])(?:~|[A-Za-z]:)?[/\\](?=[\w.])[^\s"'`,;()]*""")
"""A path from the root, a home or a drive, at the start of a text or of a word in it."""


def places(text: str) -> list[str]:
    """The absolute paths and output folders that a text names."""
    paths = (match[0][len(match[1]) :] for match in _ABSOLUTE.finditer(text))
    return [*paths, *re.findall(r"(?<![\w-])(?:--)?out[= ]\S+", text)]


def portable(value: Any) -> Any:
    """A JSON value with every absolute path in its texts cut to its last name."""
    if isinstance(value, str):
        return _ABSOLUTE.sub(lambda match: match[1] + re.split(r"[/\\]", match[0].rstrip("/\\"))[-1], value)
    if isinstance(value, Mapping):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    return value


def portable_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment for others to read: its command writes where they like and names no place of ours."""
    kept: dict[str, Any] = portable(environment)
    if "command" in kept:
        kept["command"] = _without_output(kept["command"])
    return kept


def _without_output(words: Sequence[str]) -> list[str]:
    before = ["", *words]
    return [
        word
        for previous, word in zip(before, words, strict=False)
        if previous != "--out" and word != "--out" and not word.startswith(("out=", "--out="))
    ]

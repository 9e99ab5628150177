"""Files and paths that people give: what the system or a parser says against one becomes a sentence here."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepwell.core.errors import StepwellError, quoted

MOST_BYTES = 64 << 20
"""Of a text that is read whole, as recipes, studies, scores and manifests are."""


class Unreadable(StepwellError, ValueError):
    """A path that leads nowhere, or a file that cannot be read as what it should be."""


class Absent(Unreadable):
    """There is nothing at a path."""


def place(text: str | os.PathLike[str]) -> Path:
    """The path of a text, with ~ as a home; raises Unreadable for what no system accepts as a path."""
    try:
        path = Path(text).expanduser()
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return path
    except OSError as error:
        raise Unreadable(f"{quoted(str(text))} is no path: {error.strerror}.") from None
    except RuntimeError:
        raise Unreadable(f"{quoted(str(text))} is no path: there is no such user.") from None
    except ValueError as error:
        raise Unreadable(f"{quoted(str(text))} is no path: {error}.") from None
    return path


def regular_file(path: Path) -> Path:
    """The path, if a file is there: reading a pipe or a device could wait for ever, or never end."""
    with _explained(path):
        mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise Unreadable(f"{path} is a folder, and must be a file.")
    if not stat.S_ISREG(mode):
        raise Unreadable(f"{path} is a pipe or a device, and must be a file.")
    return path


def text_of(path: Path) -> str:
    """The text of a file."""
    size = regular_file(path).stat().st_size
    if size > MOST_BYTES:
        raise Unreadable(f"{path} has {size:,} bytes, and must have at most {MOST_BYTES:,}.")
    with _explained(path):
        return path.read_text(encoding="utf-8")


def toml_of(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    content = text_of(path)
    with _explained(path, "TOML"):
        return tomllib.loads(content)


def json_of(path: Path) -> Any:
    """The value of a JSON file."""
    content = text_of(path)
    with _explained(path, "JSON"):
        return json.loads(content)


def object_of(path: Path) -> dict[str, Any]:
    """The members of a JSON file that holds an object."""
    content = json_of(path)
    if not isinstance(content, dict):
        raise Unreadable(f"{path} is not a JSON object.")
    return content


@contextmanager
def _explained(path: Path, language: str = "") -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise Absent(f"there is no file {path}.") from None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path} is not UTF-8 text: byte {error.start + 1} is none of it.") from None
    except RecursionError:
        raise Unreadable(f"{path} is not usable {language}: it is nested too deeply.") from None
    except ValueError as error:
        raise Unreadable(f"{path} is not valid {language}: {error}.") from None

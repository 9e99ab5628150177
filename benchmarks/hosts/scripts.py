"""A host's published training script as a module: as it is, or after the diff of our page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

from hosts.patch import patched


def load(path: Path, diff: str = "") -> ModuleType:
    """Run a script's own definitions, not its `main`; modules beside it can be imported."""
    source = path.read_text()
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    text = patched(source, diff) if diff else source
    # Not with our own __future__ imports.
    exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


@contextmanager
def arguments(*words: str) -> Iterator[None]:
    """`sys.argv` has these words after the script's name."""
    with mock.patch.object(sys, "argv", ["script", *words]):
        yield

"""The documentation's pages, and the modules that complete them."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md"))


def hook(name: str) -> Any:
    """A module of docs/hooks, which is no package: mkdocs puts their folder first, as here."""
    folder = str(DOCS / "hooks")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language, also those inside a list."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]

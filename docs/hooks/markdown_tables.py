"""Tables out of Markdown files: RESULTS.md and design.md are read, and nothing of them is typed again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A heading and the first table below it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> int:
        """The place of a column."""
        return self.header.index(name)


def sections(text: str) -> list[Section]:
    """The second-level headings of a page that have a table."""
    found = []
    for part in text.split("\n## ")[1:]:
        title, _, rest = part.partition("\n")
        lines = [line for line in rest.splitlines() if line.startswith("|")]
        if len(lines) > 2:
            header, _, *rows = (_cells(line) for line in lines)
            found.append(Section(title.strip(), header, tuple(rows)))
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown; intervals are not broken over lines."""
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return re.sub(r"\((\S+) to (\S+)\)", r"(\1&nbsp;to&nbsp;\2)", text)


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|"))

"""Lines and tables that fit the terminal; into a file or a pipe they are written in full."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from textwrap import fill

_GAP = "  "
_LEAST = 24
"""Columns that a text beside a label needs; with fewer it goes below."""


def room() -> int | None:
    """Columns of the terminal; None if standard output is none."""
    return get_terminal_size().columns if sys.stdout.isatty() else None


def labelled(label: str, text: str, below: str = "    ") -> str:
    """A text after its label, its further lines under its first; on a narrow terminal all below the label."""
    width = room()
    if width is None or len(label) + len(text) <= width:
        return label + text
    if width - len(label) >= _LEAST:
        return _folded(text, width, label, " " * len(label))
    folded = _folded(text, width, below, below)
    return f"{label.rstrip()}\n{folded}" if label.strip() else folded


def folded(text: str) -> str:
    """Lines wider than the terminal continued below, as far indented."""
    width = room()
    if width is None:
        return text
    return "\n".join(_continued(line, width) for line in text.split("\n"))


def _continued(line: str, width: int) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return line if len(line) <= width else _folded(line.lstrip(), width, indent, indent)


def _folded(text: str, width: int, first: str, rest: str) -> str:
    return fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(rows: Sequence[Sequence[str]], right: bool = False) -> list[str]:
    """Aligned rows, names in the first column; columns beyond the terminal follow below, names repeated."""
    columns = [[*column] for column in zip(*rows, strict=True)]
    width = room()
    if width is not None:
        columns[0] = [_shortened(name, width // 2) for name in columns[0]]
    names = _aligned(columns[0], right=False)
    blocks = []
    for block in _blocks([_aligned(column, right) for column in columns[1:]], len(names[0]), width):
        blocks.append([_GAP.join(cells).rstrip() for cells in zip(names, *block, strict=True)])
    return [line for place, block in enumerate(blocks) for line in ([""] if place else []) + block]


def _blocks(columns: list[list[str]], taken: int, width: int | None) -> Iterator[list[list[str]]]:
    """The columns that fit beside the names, and so on with the rest; one at least."""
    block: list[list[str]] = []
    used = taken
    for column in columns:
        needed = len(_GAP) + len(column[0])
        if block and width is not None and used + needed > width:
            yield block
            block, used = [], taken
        block.append(column)
        used += needed
    yield block


def _aligned(cells: Sequence[str], right: bool) -> list[str]:
    width = max(map(len, cells))
    return [cell.rjust(width) if right else cell.ljust(width) for cell in cells]


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."

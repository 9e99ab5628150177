"""metrics.jsonl: one line a record, cut back where a run resumes, thinned so that long runs stay small."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.runs.io import finite, write_atomic

WINDOW = 1024
"""Newest training records, all kept. Of those up to twice as old every second one is, then every fourth."""
_BEGINS = re.compile(rb'\{"kind": "(\w+)", "step": (\d+),')


class MetricsFile:
    """metrics.jsonl of a run, open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream = path.open("ab")
        self.newest = ""
        """Kind and step of the newest record that was added or found."""

    def append(self, values: dict[str, Any]) -> None:
        """Add a record: its kind and its step first."""
        self._stream.write(f"{json.dumps(finite(values))}\n".encode())
        self._stream.flush()
        self.newest = f"{values['kind']} {values['step']}"

    def sync(self) -> None:
        """Wait until its bytes are on the disk."""
        os.fsync(self._stream.fileno())

    def cut(self, step: int) -> tuple[int, int]:
        """Drop what was recorded after a step and what cannot be read.

        Returns how many records are left, and how many lines before the last, which may be torn, could not be
        read.
        """
        found: list[str] = []

        def known(kind: str, recorded: int) -> bool:
            if recorded <= step:
                found.append(f"{kind} {recorded}")
            return recorded <= step

        unreadable = self._keep(known)
        self.newest = found[-1] if found else ""
        return len(found), unreadable

    def thin(self, newest: int, every: int) -> None:
        """Drop training records by their age at step `newest` of a run that records one in `every` steps.

        What is kept at a step contains what is kept at any later one, so that a run which was stopped ends
        with the lines of one which was not.
        """
        self._keep(lambda kind, step: kind != "train" or _stays(step, newest, every))

    def close(self) -> None:
        """End writing."""
        self._stream.close()

    def _keep(self, wanted: Callable[[str, int], bool]) -> int:
        """Rewrite the file with the wanted lines, unless all are; readers see it before or after.

        Returns how many lines before the last cannot be read.
        """
        lines = self.path.read_bytes().splitlines(keepends=True)
        known = [_kind_and_step(line) for line in lines]
        kept = [line for line, found in zip(lines, known, strict=True) if found and wanted(*found)]
        if len(kept) < len(lines):
            write_atomic(self.path, b"".join(kept))
            self._stream.close()
            self._stream = self.path.open("ab")
        return known[:-1].count(None)


def _stays(step: int, newest: int, every: int) -> bool:
    age = (newest - step) // every
    return age < WINDOW or step % (every << (age // WINDOW).bit_length()) == 0


def _kind_and_step(line: bytes) -> tuple[str, int] | None:
    """Of a whole line; None of what is torn or damaged."""
    begins = _BEGINS.match(line)
    if begins and line.endswith(b"}\n"):
        return begins[1].decode(), int(begins[2])
    return None

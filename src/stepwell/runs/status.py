"""What others can see of a run without opening it: its lock, why it failed, its newest training metrics."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepwell.runs.directory import METRICS
from stepwell.runs.io import write_json

FAILURE = "failure.json"
_TAIL = 1 << 18
"""Bytes at the end of metrics.jsonl that hold its newest records."""


def write_failure(run: Path, reason: str) -> None:
    """Leave in the run's directory why it failed, for those who only watch."""
    with suppress(OSError):  # no room, or no directory: its command has said so already
        run.mkdir(parents=True, exist_ok=True)
        write_json(run / FAILURE, {"reason": reason})


def clear_failure(run: Path) -> None:
    """Forget a failure: the run is about to be tried again."""
    with suppress(OSError):
        (run / FAILURE).unlink()


def failure(run: Path) -> str:
    """Why the run failed; empty if it did not."""
    try:
        return str(json.loads((run / FAILURE).read_text(encoding="utf-8"))["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def newest_records(run: Path) -> list[dict[str, Any]]:
    """The last records of metrics.jsonl, whole lines only; empty before the first."""
    try:
        with (run / METRICS).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return []
    whole = [line for line in lines[1 if size > _TAIL else 0 :] if line.endswith(b"\n")]
    records = []
    for line in whole:
        with suppress(ValueError):
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as short as can be."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""metrics.jsonl that was cut, deleted or edited beside good checkpoints: what of it can be kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

from stepwell.runs.io import write_atomic

_LONGEST_RECORD = 1 << 22
"""Bytes of a record, at most: a matrix of 100 x 100 strata has some 200 kB."""


def whole_until(path: Path, length: int, step: int) -> bool:
    """Whether the first `length` bytes end with a whole record that is not after `step`."""
    if length == 0:
        return True
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) < length:
            return False
        file.seek(max(0, length - _LONGEST_RECORD))
        last = file.read(min(length, _LONGEST_RECORD)).splitlines(keepends=True)[-1]
    at = _step_of(last)
    return at is not None and at <= step


def recover(path: Path, step: int) -> tuple[int, str]:
    """Keep the records up to `step` that can be read; returns their length in bytes, and what to say."""
    kept, unreadable = [], 0
    with path.open("rb") as file:
        for line in file:
            at = _step_of(line)
            unreadable += at is None
            if at is not None and at <= step:
                kept.append(line)
    write_atomic(path, b"".join(kept))
    return sum(map(len, kept)), (
        f"{path} was cut or edited since the checkpoint of step {step}: {len(kept)} records up to that step "
        f"are kept, {unreadable} lines could not be read, and curves will lack what is missing. The weights "
        "and all that follows are not affected."
    )


def _step_of(line: bytes) -> int | None:
    """The step of a record; None of a line that is none, or that is not complete."""
    try:
        step = json.loads(line)["step"] if line.endswith(b"\n") else None
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None

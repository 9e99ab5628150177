"""What a job of a study does; quick to import, so that a signal finds its handler soon after the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.recipes.slurm import Stopped, requeueing


def run_job(settings: dict[str, Any], scored: bool, effort: dict[str, int], note: Path) -> None:
    """One trial; told to stop, it saves and goes back into the queue. Why it failed is written to `note`."""
    with requeueing():
        from stepwell.compare.attempt import attempt

        kind, message = attempt(settings, scored, effort)
        if kind == "interrupted":
            raise Stopped
        if kind == "failed":
            note.write_text(message or "it failed without a word.", encoding="utf-8")

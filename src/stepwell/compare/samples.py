"""Sheets of generated images in a run directory, as data: addresses, so that a page needs no other file."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepwell.compare.results import Outcome

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Sheet:
    """Generated images of one run."""

    uri: str
    """A data: address."""
    caption: str


def sheet_at(run: Outcome, seconds: float) -> Sheet | None:
    """The images generated nearest to a training time, so that methods are shown at equal time."""
    times = {int(record["step"]): float(record["seconds"]) for record in run.evaluations}
    sheets = [(abs(times[step] - seconds), step, path) for step, path in _sheets(run.path) if step in times]
    if not sheets:
        return None
    _, step, path = min(sheets)
    caption = f"{run.method}, seed {run.seed}: step {step}, {times[step]:.0f} training seconds"
    return Sheet(_uri(path), caption)


def newest_sheet(run: Path) -> Sheet | None:
    """The last images that a run has generated."""
    step, path = max(_sheets(run), default=(0, None))
    return None if path is None else Sheet(_uri(path), f"step {step}")


def _sheets(run: Path) -> Iterator[tuple[int, Path]]:
    """Steps and files of PNGs inside a run: a page must not show what a link points to elsewhere."""
    for path in run.glob("samples/step-*.png"):
        number = path.stem.removeprefix("step-")
        if number.isdigit() and path.resolve().is_relative_to(run.resolve()) and _is_png(path):
            yield int(number), path


def _is_png(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_PNG)) == _PNG


def _uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"

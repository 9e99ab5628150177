"""Pictures of analyses (they need matplotlib, from the `report` extra)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepwell.core.errors import StepwellError


def add_save(parser: argparse.ArgumentParser) -> None:
    """The option --save."""
    parser.add_argument("--save", type=Path, metavar="FILE.png", help="draw a picture (.png, .svg or .pdf)")


def check(path: Path | None) -> None:
    """Whether --save can work: asked before minutes are spent on what it would show."""
    if path is None:
        return
    from stepwell.cli.show import check_picture

    check_picture(path)
    blank(1.0, 1.0)


def blank(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        from stepwell.cli.picture import MissingExtra

        raise MissingExtra(
            "--save needs matplotlib, which is not installed: pip install 'stepwell[report]'."
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def write(figure: Any, path: Path) -> None:
    """Save a figure."""
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StepwellError(f"could not write {path}: {error.strerror}.") from error

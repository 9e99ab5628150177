"""Pictures of analyses (they need matplotlib, from the `report` extra)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.analyze.interdependence import Alignments, Interdependence, Transfer


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
        from stepwell.cli.chart import MissingExtra

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


_COLOURS = "RdBu_r"
"""Red where the loss rises, blue where it falls."""


def draw(found: Interdependence, title: str, path: Path) -> None:
    """Changes of the loss on the left, cosines of gradients on the right."""
    picture = blank(12.0, 5.2)
    picture.suptitle(title, fontsize=11)
    left, right = picture.subplots(1, 2)
    _changes(picture, left, found.transfer)
    _cosines(picture, right, found.alignments)
    write(picture, path)


def _changes(picture: Any, axes: Any, found: Transfer) -> None:
    """Rows are ranges, columns bands."""
    relative = [
        [100 * value / before for value, before in zip(row, found.before, strict=True)]
        for row in found.change
    ]
    most = max(abs(value) for row in relative for value in row) or 1.0
    rows = list(range(len(relative) + 1))
    # Up to a tenth of the largest change linear, then logarithmic: trained and untrained bands both show.
    from matplotlib.colors import SymLogNorm

    norm = SymLogNorm(linthresh=most / 10, vmin=-most, vmax=most)
    mesh = axes.pcolormesh(found.borders, rows, relative, cmap=_COLOURS, norm=norm)
    _hatch(axes, found)
    for row, (low, high) in enumerate(found.ranges):
        axes.plot([low, high, high, low, low], [row, row, row + 1, row + 1, row], color="black", lw=1.2)
    names = [*(f"{low:.3g} to {high:.3g}" for low, high in found.ranges[:-1]), "all of time"]
    axes.set_yticks([row + 0.5 for row in rows[:-1]], names)
    axes.invert_yaxis()
    axes.set_ylabel("trained on (outlined)")
    axes.set_xlabel("unit time u: 0 is data, 1 is noise")
    axes.set_title(f"held-out loss after {found.steps} steps; hatched: cannot be told", fontsize=10)
    picture.colorbar(mesh, ax=axes, label="change in % of before")


def _hatch(axes: Any, found: Transfer) -> None:
    """Strike out the cells whose interval has 0 in it."""
    for row, (change, margin) in enumerate(zip(found.change, found.margin, strict=True)):
        for column, (value, around) in enumerate(zip(change, margin, strict=True)):
            if abs(value) <= around:
                ends = found.borders[column : column + 2]
                axes.fill_between(ends, row, row + 1, facecolor="none", edgecolor="0.4", hatch="////", lw=0)


def _cosines(picture: Any, axes: Any, found: Alignments) -> None:
    metric = "Adam's" if found.metric == "adam" else "plain"
    # Blue is good in both maps: aligned gradients lower each other's loss.
    mesh = axes.pcolormesh(
        found.borders, found.borders, found.cosine, cmap=_COLOURS.removesuffix("_r"), vmin=-1, vmax=1
    )
    axes.set_facecolor("0.85")
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set_xlabel("unit time u: 0 is data, 1 is noise")
    axes.set_title(f"cosines of mean gradients ({metric} metric); grey: noise", fontsize=10)
    picture.colorbar(mesh, ax=axes, label="cosine")

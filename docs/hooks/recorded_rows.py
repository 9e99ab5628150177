"""What the records say about one method: its rows of RESULTS.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from markdown_tables import Section, sections

from stepwell.catalogue.entry import Entry
from stepwell.core.errors import UnknownName
from stepwell.recipes.method import parse_method

RESULTS = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"
STUDY = ("method", "against", "judged by", "images for same loss", "end", "distance", "seeds")
"""Of the fifteen columns of a study."""
_OTHERS = ("Learned samplers", "The planted problem")


def rows_about(entry: Entry) -> list[Section]:
    """The tables that compare this method with another, cut down to its rows and to what fits on a page."""
    found = []
    for section in sections(RESULTS.read_text()):
        if set(STUDY) <= set(section.header):
            against = section.column("against")
            chosen = [row for row in section.rows if row[against] and _is_about(entry, row[0])]
            found.append(_cut(section, chosen))
        elif section.title.startswith("long: "):
            found.append(_only(at_the_end(section), lambda row: _is_about(entry, row[1])))
        elif section.title.startswith(_OTHERS):
            found.append(_only(section, lambda row: _is_about(entry, row[0])))
        elif section.title.split(" ")[0] == entry.name and section.header[0] == "where":
            found.append(section)
    return [section for section in found if section.rows]


def at_the_end(section: Section) -> Section:
    """What came of long runs after all of their steps."""
    after = section.column("after")
    rows = [row for row in section.rows if row[after] == "4/4"]
    places = [place for place in range(len(section.header)) if place != after]
    header = tuple(_SHORTER.get(section.header[place], section.header[place]) for place in places)
    # The one-sided bounds are in the records.
    cut = tuple(tuple(row[place].partition(", at most")[0] for place in places) for row in rows)
    return Section(section.title, header, cut)


_SHORTER = {
    "loss over the other's there": "loss",
    "images to the other's loss there": "images to the other's end",
    "by the other's own forecast": "forecast of these",
    "bits over the other's there": "bits",
    "distance over the other's there": "distance",
}


def _only(section: Section, wanted: Callable[[tuple[str, ...]], bool]) -> Section:
    return Section(section.title, section.header, tuple(row for row in section.rows if wanted(row)))


def _cut(section: Section, rows: list[tuple[str, ...]]) -> Section:
    places = [section.column(name) for name in STUDY]
    return Section(section.title, STUDY, tuple(tuple(row[place] for place in places) for row in rows))


def _is_about(entry: Entry, cell: str) -> bool:
    """Samplers have the rows that draw by them, weightings those that weight even draws."""
    written = cell.split(" against ")[0].split(", ")[0]
    try:
        method = parse_method(written)
    except UnknownName:
        return False
    drawn, weighted = method.sampler.name, method.weighting.name
    if entry.kind == "sampler":
        return drawn == entry.name and not (drawn in ("uniform", "reference") and weighted != "none")
    return weighted == entry.name and drawn in ("uniform", "reference")

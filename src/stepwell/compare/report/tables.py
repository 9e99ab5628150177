"""Tables as HTML: real headers, and beside every ratio a picture of its interval."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from html import escape

from stepwell.compare.colours import COLOURS
from stepwell.compare.views import Table

_ESTIMATE = re.compile(r"(?P<value>\S+) (?P<interval>\((?P<low>\S+) to (?P<high>\S+)\))(?P<rest>.*)")
_WIDTH, _FARTHEST = 132, math.log(4)
"""Of a picture: pixels; and the ratio at its ends, at most."""


def table(content: Table, colours: Mapping[str, int], name: str) -> str:
    """A table in a box of its own, which scrolls sideways where the screen is narrow."""
    content = _without_empty_columns(content)
    reaches = [_reach([row[place] for row in content.rows]) for place in range(len(content.columns))]
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in content.columns)
    body = ""
    for first, *cells in content.rows:
        colour = colours.get(first)
        mark = swatch(colour) if colour is not None else ""
        body += f'<tr><th scope="row">{mark}{escape(first)}</th>'
        body += "".join(
            f"<td>{_cell(cell, reach, colour)}</td>" for cell, reach in zip(cells, reaches[1:], strict=True)
        )
        body += "</tr>"
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}"><table>'
        f"<caption><span>{escape(content.caption)}</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _without_empty_columns(content: Table) -> Table:
    """While runs go on, most of what will be known of them is not."""
    kept = [
        place
        for place in range(len(content.columns))
        if place == 0 or any(row[place] for row in content.rows)
    ]
    columns = tuple(content.columns[place] for place in kept)
    return Table(content.caption, columns, tuple(tuple(row[place] for place in kept) for row in content.rows))


def swatch(colour: int) -> str:
    """A dot in a method's colour; past the palette a ring, then a square."""
    look = f"c{colour % len(COLOURS)} d{colour // len(COLOURS)}"
    return f'<span class="swatch {look}" aria-hidden="true"></span>'


def _cell(text: str, reach: float, colour: int | None) -> str:
    """An estimate stands out before its interval, with a picture of both."""
    found = _ESTIMATE.fullmatch(text)
    if found is None:
        return escape(text)
    value, interval, rest = (escape(found[name]) for name in ("value", "interval", "rest"))
    return f'<b>{value}</b> <span class="interval">{interval}</span>{rest}{_picture(found, reach, colour)}'


def _reach(cells: list[str]) -> float:
    """How far from 1 a column's intervals go, on a logarithmic scale."""
    found = [match for cell in cells if (match := _ESTIMATE.fullmatch(cell))]
    logs = [log for match in found for name in ("low", "high") if (log := _log(match[name])) is not None]
    return min(max([math.log(1.1), *map(abs, logs)]), _FARTHEST)


def _log(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if value <= 0:
        return -math.inf
    return math.log(value) if value == value else None


def _picture(found: re.Match[str], reach: float, colour: int | None) -> str:
    """A dot and its interval about the line of 1; left of it is better."""
    places = [_log(found[name]) for name in ("value", "low", "high")]
    if None in places:
        return ""
    middle, low, high = (
        round((min(max(log or 0.0, -reach), reach) / reach + 1) / 2 * (_WIDTH - 8) + 4, 1) for log in places
    )
    ink = f"c{colour % len(COLOURS)}" if colour is not None else ""
    return (
        f'<svg class="range {ink}" viewBox="0 0 {_WIDTH} 10" width="{_WIDTH}" height="10" aria-hidden="true">'
        f'<path class="one" d="M{_WIDTH / 2} 0v10"/><path class="reach" d="M{low} 5H{high}"/>'
        f'<circle cx="{middle}" cy="5" r="3.2"/></svg>'
    )

"""Tables as HTML: real headers, and beside every ratio a picture of its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from stepwell.compare.report import COLOURS
from stepwell.compare.stats import Ratio
from stepwell.compare.views import Cell, Table, cell_text

_WIDTH, _FARTHEST = 132, math.log(4)
"""Width of a picture in pixels; and the logarithm of the ratio at its ends, at most."""


def table(content: Table, colours: Mapping[str, int], name: str) -> str:
    """A table in a box of its own, which scrolls sideways where the screen is narrow."""
    content = content.without_empty_columns()
    limits = [_limit(column) for column in zip(*content.rows, strict=True)]
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in content.columns)
    body = ""
    for first, *cells in content.rows:
        title = cell_text(first)
        colour = colours.get(title)
        mark = swatch(colour) if colour is not None else ""
        body += f'<tr><th scope="row">{mark}{escape(title)}</th>'
        body += "".join(
            f"<td>{_cell(cell, limit, colour)}</td>" for cell, limit in zip(cells, limits[1:], strict=True)
        )
        body += "</tr>"
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}"><table>'
        f"<caption><span>{escape(content.caption)}</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def swatch(colour: int) -> str:
    """A dot in a method's colour; past the palette a ring, then a square."""
    style = f"c{colour % len(COLOURS)} d{colour // len(COLOURS)}"
    return f'<span class="swatch {style}" aria-hidden="true"></span>'


def _cell(cell: Cell, limit: float, colour: int | None) -> str:
    """A ratio stands out before its interval, with a picture of both."""
    if not isinstance(cell, Ratio) or not cell.interval:
        return escape(cell_text(cell))
    text = f'<b>{cell.mean:.2f}</b> <span class="interval">{cell.interval}</span>'
    return text + _picture(cell, limit, colour)


def _limit(column: tuple[Cell, ...]) -> float:
    """How far from 1 a column's intervals go, on a logarithmic scale."""
    ratios = [cell for cell in column if isinstance(cell, Ratio) and cell.interval]
    ends = [abs(_log(end)) for ratio in ratios for end in (ratio.low, ratio.high)]
    return min(max([math.log(1.1), *ends]), _FARTHEST)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _picture(ratio: Ratio, limit: float, colour: int | None) -> str:
    """A dot and its interval around the line of 1; left of it is better."""
    middle, low, high = (
        round((min(max(_log(value), -limit), limit) / limit + 1) / 2 * (_WIDTH - 8) + 4, 1)
        for value in (ratio.mean, ratio.low, ratio.high)
    )
    ink = f"c{colour % len(COLOURS)}" if colour is not None else ""
    return (
        f'<svg class="range {ink}" viewBox="0 0 {_WIDTH} 10" width="{_WIDTH}" height="10" aria-hidden="true">'
        f'<path class="one" d="M{_WIDTH / 2} 0v10"/><path class="reach" d="M{low} 5H{high}"/>'
        f'<circle cx="{middle}" cy="5" r="3.2"/></svg>'
    )

"""Tables as HTML: real headers, and beside every ratio a picture of its interval."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from stepwell.compare.report import COLOURS
from stepwell.compare.report.forest import Scale, bar, line_at_one
from stepwell.compare.stats import Ratio
from stepwell.compare.views import Cell, Table, cell_text


def table(content: Table, colours: Mapping[str, int], name: str) -> str:
    """A table in a box of its own, which scrolls sideways where the screen is narrow."""
    content = content.without_empty_columns()
    scales = [
        Scale.of(cell for cell in column if isinstance(cell, Ratio))
        for column in zip(*content.rows, strict=True)
    ]
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in content.columns)
    body = ""
    for first, *cells in content.rows:
        title = cell_text(first)
        colour = colours.get(title)
        mark = swatch(colour) if colour is not None else ""
        body += f'<tr><th scope="row">{mark}{escape(title)}</th>'
        body += "".join(
            f"<td>{_cell(cell, scale, colour)}</td>" for cell, scale in zip(cells, scales[1:], strict=True)
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


def _cell(cell: Cell, scale: Scale, colour: int | None) -> str:
    """A ratio stands out before its interval, with a picture of both."""
    if not isinstance(cell, Ratio) or not cell.interval:
        return escape(cell_text(cell))
    text = f'<b>{cell.mean:.2f}</b> <span class="interval">{cell.interval}</span>'
    dot = bar(cell, scale, 10, 3.2, f"c{colour % len(COLOURS)}" if colour is not None else "")
    return f'{text}<div class="drawn">{line_at_one(scale)}{dot}</div>'

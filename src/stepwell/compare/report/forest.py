"""Ratios as dots and intervals beside a line at 1, as SVG without a script: the answer, cells of tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from stepwell.compare.stats import FEWEST_SEEDS, Ratio
from stepwell.compare.views import Answer, AnswerRow

_FARTHEST = 4.0
"""Ratios farther from 1 than this factor are drawn at the edge."""
_NEAREST = 1.05
"""The edges are at least this factor away from 1, so that small differences look small."""
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_MOST_TICKS = 7
_WIDE = 6.0
"""From such a ratio of its ends on, an axis counts in doublings."""


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis of ratios, from `low` to `high`."""

    low: float
    high: float

    @classmethod
    def of(cls, ratios: Iterable[Ratio]) -> Scale:
        """An axis that holds 1 and all intervals, up to a limit."""
        ends = [end for ratio in ratios for end in _ends(ratio)]
        low = max(min([1 / _NEAREST, *ends]), 1 / _FARTHEST)
        high = min(max([_NEAREST, *ends]), _FARTHEST)
        margin = (high / low) ** 0.05
        return cls(low / margin, high * margin)

    def at(self, value: float) -> float:
        """The place of a ratio in percent; the edge if it is beyond."""
        inside = min(max(value, self.low), self.high)
        return round(100 * math.log(inside / self.low) / math.log(self.high / self.low), 2)

    def ticks(self) -> list[float]:
        """Round ratios, 1 among them."""
        if self.high / self.low > _WIDE:
            return [tick for tick in (0.25, 0.5, 1.0, 2.0, 4.0) if self.low <= tick <= self.high]
        for step in _STEPS:
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last - first < _MOST_TICKS:
                return [round(count * step, 2) for count in range(first, last + 1)]
        return [1.0]


def _ends(ratio: Ratio) -> tuple[float, ...]:
    if ratio.missed or not ratio.seeds:
        return ()
    return (ratio.low, ratio.mean, ratio.high) if ratio.interval else (ratio.mean,)


def bar(ratio: Ratio | None, scale: Scale, height: int, dot: float, colour: str = "") -> str:
    """The interval and the dot of a ratio; without one, a ring at 1."""
    middle, inside = height / 2, ""
    if ratio is None:
        inside = f'<circle class="ring" cx="{scale.at(1)}%" cy="{middle}" r="{dot}"/>'
    elif _ends(ratio):
        if ratio.interval:
            low, high = scale.at(ratio.low), scale.at(ratio.high)
            inside = f'<line class="reach" x1="{low}%" x2="{high}%" y1="{middle}" y2="{middle}"/>'
        kind = "" if ratio.interval else ' class="ring"'
        inside += f'<circle{kind} cx="{scale.at(ratio.mean)}%" cy="{middle}" r="{dot}"/>'
    return f'<svg class="range {colour}" height="{height}" aria-hidden="true">{inside}</svg>'


def line_at_one(scale: Scale) -> str:
    """As high as what it lies behind."""
    one = scale.at(1)
    return f'<svg class="one" aria-hidden="true"><line x1="{one}%" x2="{one}%" y1="0" y2="100%"/></svg>'


def verdict_of(ratio: Ratio | None) -> str:
    """What a ratio says: better, worse, undecided; empty where there is none."""
    if ratio is None or not _ends(ratio):
        return ""
    if ratio.seeds < FEWEST_SEEDS:
        return f"{ratio.seeds} {'seed' if ratio.seeds == 1 else 'seeds'}, no verdict"
    return "better" if ratio.lower else "worse" if ratio.higher else "undecided"


def picture(answer: Answer, titled: bool, height: int = 30) -> str:
    """The answer as a table for screen readers and a picture for eyes, one row a method, `height` pixels."""
    scale = Scale.of(row.ratio for row in answer.rows if row.ratio is not None)
    rows = "".join(_row(row, scale, height) for row in answer.rows)
    title = f"<b>{escape(answer.name)}</b> " if titled else ""
    return (
        f'<div class="forest"><table class="answer"><caption>{title}{escape(answer.measure)}, '
        "with 95 % intervals; left of the line is better.</caption><thead><tr>"
        '<th scope="col">method</th><th scope="col">picture</th><th scope="col">ratio</th></tr>'
        f"</thead><tbody>{rows}</tbody>"
        f'<tfoot aria-hidden="true"><tr><td></td><td>{_axis(scale)}</td><td></td></tr></tfoot></table></div>'
    )


def _row(row: AnswerRow, scale: Scale, height: int) -> str:
    word = verdict_of(row.ratio)
    kind = word if word in ("better", "worse") else "undecided"
    drawn = row.ratio is not None or row.note == "baseline"
    note = f" <small>{escape(row.note)}</small>" if row.note else ""
    value = "1" if row.ratio is None and drawn else "–"
    if row.ratio is not None:
        value = f"<b>{row.ratio.mean:.2f}</b> {row.ratio.interval}" if word else escape(str(row.ratio))
    said = f' <span class="word">{word}</span>' if word else ""
    picture = bar(row.ratio, scale, height, height / 5) if drawn else ""
    return (
        f'<tr class="{kind}"><th scope="row">{escape(row.method)}{note}</th>'
        f"<td>{line_at_one(scale)}{picture}</td><td>{value}{said}</td></tr>"
    )


def _axis(scale: Scale) -> str:
    """Ticks under the picture."""
    marks = "".join(
        f'<line class="notch" x1="{at}%" x2="{at}%" y1="0" y2="5"/>'
        f'<text class="tick x" x="{at}%" y="18">{tick:g}</text>'
        for tick in scale.ticks()
        for at in [scale.at(tick)]
    )
    return (
        f'<svg class="range" height="22"><line class="base" x1="0" x2="100%" y1="0.5" y2="0.5"/>{marks}</svg>'
    )

"""Small pictures of densities in a line of text: `<!-- density METHOD -->`, or a recorded run."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from functools import cache
from html import escape

from method_pictures import RECORDS, ROOT

from stepwell.compare.report import DENSITY

MARK = re.compile(r"<!-- density (\S+) -->")
_WIDTH, _HEIGHT, _TALLEST = 250, 54, 3.0
"""Size of a picture; a density of 3 fills its height, and what is higher is cut off."""
_OCTAVES = 2
"""The colours end at a fourth of uniform and at four times of it, as in a report."""


@cache
def small_density(what: str) -> str:
    """An SVG of bars: what a method draws on the linear chain by its formula, or a run drew at its end."""
    values = _values(what)
    wide = _WIDTH / len(values)
    bars = "".join(_bar(place * wide, wide, value) for place, value in enumerate(values))
    level = _HEIGHT * (1 - 1 / _TALLEST)
    outline = " ".join(
        f"{x * wide:g},{_HEIGHT - _high(value):.1f}"
        for place, value in enumerate(values)
        for x in (place, place + 1)
    )
    name = what if "/" not in what else what.split("/")[-2]
    said = f"{name}: timesteps from data on the left to noise on the right; the line is uniform"
    return (
        f'<svg class="density" viewBox="0 0 {_WIDTH} {_HEIGHT + 14}" role="img" aria-label="{escape(said)}">'
        f'{bars}<polyline points="{outline}"/>'
        f'<line x1="0" x2="{_WIDTH}" y1="{level}" y2="{level}"/>'
        f'<text x="0" y="{_HEIGHT + 12}">data</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 12}" text-anchor="end">noise</text></svg>'
    )


def _high(value: float) -> float:
    return _HEIGHT * min(value / _TALLEST, 1)


def _bar(x: float, wide: float, value: float) -> str:
    high = _high(value)
    octave = max(-_OCTAVES, min(math.log2(max(value, 1e-9)), _OCTAVES))
    colour = DENSITY[round((octave / _OCTAVES + 1) / 2 * (len(DENSITY) - 1))]
    return f'<rect x="{x:g}" y="{_HEIGHT - high:.1f}" width="{wide:g}" height="{high:.1f}" fill="{colour}"/>'


def _values(what: str) -> list[float]:
    """[K]: relative to uniform."""
    from stepwell.cli.main import main

    told = io.StringIO()
    with contextlib.chdir(ROOT / RECORDS), contextlib.redirect_stdout(told):
        assert main(["analyze", "densities", what, "--json"]) == 0, what
    (method,) = json.loads(told.getvalue())
    values: list[float] = method["moments"][-1]["density" if method["corrected"] else "effective"]
    return values

"""Parts of figures over unit time: an example on its way to noise above the axes, names at their curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from stepwell.compare.report import COLOURS

if TYPE_CHECKING:
    from stepwell.core.process import NoiseProcess

Curve = tuple[Sequence[float], Sequence[float]]
"""Unit times and heights."""
_NOISED = 13
"""Images along the axis."""
_PLACES = 60
"""Where a name may stand, from left to right."""
_LETTER, _LINE = 0.011, 0.055
"""Width and height of a letter, as shares of the axes."""
_ENOUGH = 0.08
"""More distance from other curves than this makes a name no clearer."""


_STRIP, _GAP = 0.42, 0.2
"""Height of a row of images and of the numbers above it, in inches."""


def room_above(count: int) -> float:
    """Inches that the rows of so many processes take."""
    return count * (_STRIP + _GAP) + _GAP


def noised_above(axes: Any, processes: Mapping[str, NoiseProcess], inches: float) -> None:
    """A row of noised images with its log-SNR above the axes, which are so high, for each process."""
    from stepwell.analyze.noised import noised_example

    row, gap = _STRIP / inches, _GAP / inches
    for place, (name, process) in enumerate(reversed(list(processes.items()))):
        example = noised_example(process, _NOISED)
        strip = axes.inset_axes((0.0, 1 + gap / 2 + place * (row + gap), 1.0, row))
        strip.imshow(example.pixels, extent=(0, 1, 0, 1), aspect="auto", cmap="gray", vmin=0, vmax=255)
        middles = [(index + 0.5) / _NOISED for index in range(_NOISED)]
        strip.xaxis.tick_top()
        strip.set_xticks(middles, [f"{round(level, 1) + 0.0:.1f}" for level in example.log_snr], fontsize=7)
        strip.tick_params(length=0, pad=1)
        strip.set_yticks([])
        title = f"log-SNR\n{name}" if len(processes) > 1 else "log-SNR"
        strip.set_ylabel(title, fontsize=7, rotation=0, ha="right", va="center")
        strip.spines[:].set_visible(False)
        # Its room is known, and a layout that looked for it would take it twice.
        strip.set_in_layout(False)


def label_curves(axes: Any, curves: Sequence[Curve], names: Sequence[str]) -> None:
    """Write every name at its curve, where it is farthest from the others."""
    bottom, end = axes.get_ylim()
    top = (end - bottom) * 1.08
    axes.set_ylim(top=bottom + top)
    curves = [(times, [height - bottom for height in heights]) for times, heights in curves]
    taken: list[tuple[float, float, float]] = []
    for index, (name, curve) in enumerate(_apart(names, curves, top)):
        if not name:
            continue
        others = [other for other in curves if not _same(other, curve, top)]
        half = min(_LETTER * len(name) / 2, 0.5)
        places = [half + (1 - 2 * half) * place / (_PLACES - 1) for place in range(_PLACES)]
        u = max(places, key=lambda place: _clearness(place, half, curve, others, taken, top))
        height = max(_within(curve, u, half))
        taken.append((u, height / top, half))
        axes.annotate(
            name,
            (u, height + bottom),
            (0, 2.5),
            textcoords="offset points",
            color=COLOURS[index % len(COLOURS)],
            fontsize=8,
            weight="bold",
            ha="center",
            va="bottom",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6},
        )


def _apart(names: Sequence[str], curves: Sequence[Curve], top: float) -> list[tuple[str, Curve]]:
    """Names with their curves; of curves that cover each other, the first has all names."""
    firsts = [next(i for i, other in enumerate(curves) if _same(other, curve, top)) for curve in curves]
    joined = [
        ", ".join(name for name, place in zip(names, firsts, strict=True) if place == index)
        for index in range(len(curves))
    ]
    return list(zip(joined, curves, strict=True))


def _same(one: Curve, other: Curve, top: float) -> bool:
    pairs = zip(one[1], other[1], strict=False)
    return len(one[1]) == len(other[1]) and all(abs(a - b) < 0.005 * top for a, b in pairs)


def _clearness(
    u: float,
    half: float,
    curve: Curve,
    others: Sequence[Curve],
    taken: Sequence[tuple[float, float, float]],
    top: float,
) -> float:
    """How well a name on top of its curve at u can be told from other curves and names."""
    own = _within(curve, u, half)
    foot = max(own) / top
    middle = foot + _LINE / 2
    near = [abs(height / top - middle) for height in chain.from_iterable(_within(o, u, half) for o in others)]
    overlaps = any(abs(u - x) < half + wide and abs(foot - y) < _LINE for x, y, wide in taken)
    outside = foot + _LINE > 1
    steep = (max(own) - min(own)) / top
    # Where a curve is high, it is met first.
    high = 0.06 * max(own) / (max(curve[1]) or 1.0)
    return min([_ENOUGH, *near]) + high - steep - (overlaps or outside)


def _within(curve: Curve, u: float, half: float) -> list[float]:
    """A curve's heights beside a name, the nearest one at least."""
    times, heights = curve
    found = [h for t, h in zip(times, heights, strict=True) if abs(t - u) <= half and math.isfinite(h)]
    return found or [min(zip(times, heights, strict=True), key=lambda pair: abs(pair[0] - u))[1]]

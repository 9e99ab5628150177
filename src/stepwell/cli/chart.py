"""Profiles as text: bars that any terminal can show. Plain Python, so that help stays quick."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from stepwell.compare.views import COLOURS
from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.cli.profile import Profile


_COLUMNS, _ROWS = 64, 6
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:#"


def can_draw_blocks(stream: TextIO) -> bool:
    """Whether the stream's encoding has block characters."""
    try:
        _BLOCKS.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def text(profile: Profile, fancy: bool = True) -> str:
    """Density, effective weight, and what falls into each fifth of time."""
    title = profile.title if fancy else profile.title.replace("·", "|")
    lines = [title, profile.source, ""]
    if profile.learns:
        lines += ["It learns: this is where it starts, before any loss was seen.", ""]
    lines += _plot("density (uniform = 1)", profile.density.tolist(), fancy)
    lines += [_axis(profile), ""]
    note = "corrected: the reference's, whatever is drawn" if profile.unbiased else "density x weighting"
    lines += _plot(f"effective weight on the loss (mean = 1; {note})", profile.effective.tolist(), fancy)
    lines += [_axis(profile), "", *_fifths(profile), ""]
    return "\n".join(lines)


def bars(title: str, values: Sequence[float], borders: Sequence[float], last: str, fancy: bool = True) -> str:
    """Values between borders of unit time, each as wide as its part of time; `last` names the noise end."""
    middles = ((column + 0.5) / _COLUMNS for column in range(_COLUMNS))
    columns = [values[bisect(borders, middle) - 1] for middle in middles]
    return "\n".join([*_plot(title, columns, fancy), _ends(_COLUMNS, last)])


def _plot(title: str, values: Sequence[float], fancy: bool) -> list[str]:
    columns = _binned(values, min(_COLUMNS, len(values)))
    top = max(columns) or 1.0
    marks = _BLOCKS if fancy else _ASCII
    steps = len(marks) - 1
    rows = []
    for row in reversed(range(_ROWS)):
        filled = (round(value / top * _ROWS * steps) - row * steps for value in columns)
        rows.append("".join(marks[min(max(level, 0), steps)] for level in filled))
    labels = [f"{top:8.3g}", *[" " * 8] * (_ROWS - 2), f"{0:8.3g}"]
    return [f"{'':9}{title}", *(f"{label} {row}" for label, row in zip(labels, rows, strict=True))]


def _binned(values: Sequence[float], count: int) -> list[float]:
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def _axis(profile: Profile) -> str:
    return _ends(min(_COLUMNS, len(profile.u)), last_time(profile.timesteps))


def last_time(timesteps: int | None) -> str:
    """The name of the noise end."""
    return f"{timesteps - 1} noise" if timesteps else "1 noise"


def _ends(width: int, last: str) -> str:
    return f"{'':9}{'data 0':<{max(width - len(last), 7)}}{last}"


def _fifths(profile: Profile) -> list[str]:
    parts = min(5, len(profile.u))
    names = [f"{100 * k // parts}-{100 * (k + 1) // parts} %" for k in range(parts)]
    rows = [("time", names)]
    for name, values in (("draws", profile.density), ("weight", profile.effective)):
        shares = _binned(values.tolist(), parts)
        rows.append((name, [f"{100 * share / (sum(shares) or 1):.1f} %" for share in shares]))
    return [f"{name:>8} " + "".join(f"{cell:>12}" for cell in cells) for name, cells in rows]


class MissingExtra(StepwellError, ImportError):
    """An optional dependency that this command needs."""


def save(profiles: Sequence[Profile], path: Path) -> None:
    """Density above, effective weight below, one line a profile."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra(
            "--save needs matplotlib, which is not installed: pip install 'stepwell[report]'."
        ) from None
    figure = Figure(figsize=(8, 6.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    common, labels = _labels([profile.parts for profile in profiles])
    figure.suptitle(common, fontsize=11)
    for index, (profile, label) in enumerate(zip(profiles, labels, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        style = "-" if index < len(COLOURS) else "--"
        above.plot(profile.u, profile.density, style, color=colour, label=label, lw=1.6)
        below.plot(profile.u, profile.effective, style, color=colour, lw=1.6)
    above.set_ylabel("density\n(uniform = 1)")
    below.set_ylabel("effective weight on the loss\n(mean = 1)")
    below.set_xlabel("unit time u: 0 is data, 1 is noise")
    for axes in (above, below):
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if any(labels):
        above.legend(frameon=False, fontsize=8, loc="upper right")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StepwellError(f"could not write {path}: {error.strerror}.") from error


def _labels(parts: Sequence[tuple[str, ...]]) -> tuple[str, list[str]]:
    """What all profiles have in common, and what sets each apart."""
    same = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    common = " · ".join(part for part, shared in zip(parts[0], same, strict=True) if shared)
    apart = [" · ".join(p for p, shared in zip(row, same, strict=True) if not shared) for row in parts]
    return common, apart

"""Charts over unit time: bars of text for any terminal, and matplotlib figures. Imports no torch."""

from __future__ import annotations

import math
import sys
from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.columns import room, table
from stepwell.cli.options import check_picture
from stepwell.cli.time_axis import label_curves, noised_above, room_above
from stepwell.compare.report import COLOURS
from stepwell.core.errors import StepwellError
from stepwell.runs.io import replacing

if TYPE_CHECKING:
    from torch import Tensor

    from stepwell.analyze.densities import Profile

TIME_AXIS = "unit time u: 0 is data, 1 is noise"
_COLUMNS, _ROWS = 64, 6
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:#"


def can_draw_blocks() -> bool:
    """Whether the encoding of standard output has block characters."""
    try:
        _BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def text(profile: Profile) -> str:
    """Density, effective weight, and their shares in each fifth of time; where all is 1, the log-SNR."""
    title = profile.title if can_draw_blocks() else profile.title.replace("·", "|")
    lines = [title, profile.source, ""]
    if profile.learns:
        lines += ["It learns: this is its density before training.", ""]
    width = min(_columns(), len(profile.u))
    axis = [_ends(width, last_time(profile.process.timesteps)), _log_snr_line(profile, width)]
    if _all_even([profile]):
        told = "Every timestep is drawn equally often, and its loss counts as much as any other's."
        levels = _log_snr(profile)
        return "\n".join([*lines, told, "", *_plot("log-SNR", levels, min(levels)), axis[0], ""])
    lines += [*_plot("density (uniform = 1)", profile.density.tolist()), *axis, ""]
    if _weighted([profile]):
        note = "corrected: the reference density" if profile.unbiased else "density x weighting"
        lines += _plot(f"effective weight on the loss (mean = 1; {note})", profile.effective.tolist())
        lines += [*axis, ""]
    return "\n".join([*lines, *_fifths(profile), ""])


def rows(profiles: Sequence[Profile]) -> str:
    """Several profiles, one row each on one scale: density, then the effective weight where it is another.

    Where all is 1, they are processes: the log-SNR.
    """
    common, labels = _labels([profile.parts for profile in profiles])
    wide = max(map(len, ("log-SNR", *labels)))
    width = min([_columns(wide + 14), *(len(profile.u) for profile in profiles)])
    processes = {profile.parts[2]: profile for profile in profiles}
    lines = [common if can_draw_blocks() else common.replace("·", "|")]
    if _all_even(profiles):
        lines += ["", f"{'':{wide}}  log-SNR (full height is {_CLEAREST:g}, empty is -{_CLEAREST:g})"]
        for label, profile in zip(labels, profiles, strict=True):
            levels = _log_snr(profile)
            marks = "".join(_mark((level / _CLEAREST + 1) / 2) for level in _binned(levels, width))
            lines += [f"{label:>{wide}}  {marks}  {levels[0]:.3g} to {levels[-1]:.3g}"]
        return "\n".join([*lines, f"{'':{wide}}  {_ends(width, '1 noise', '')}", ""])
    blocks = [("density (uniform = 1; full height is 3)", [one.density.tolist() for one in profiles])]
    if _weighted(profiles):
        blocks += [("effective weight on the loss (mean = 1)", [one.effective.tolist() for one in profiles])]
    for title, values in blocks:
        lines += ["", f"{'':{wide}}  {title}"]
        for label, heights in zip(labels, values, strict=True):
            top = max(heights)
            marks = "".join(_mark(value / _TALLEST) for value in _binned(heights, width))
            lines += [f"{label:>{wide}}  {marks}  up to {top:.3g}"]
        for profile in processes.values():
            name = profile.parts[2] if len(processes) > 1 else ""
            ends = _ends(width, last_time(profile.process.timesteps), "")
            lines += [f"{name:>{wide}}  {ends}", f"{'log-SNR':>{wide}}  {_log_snr_line(profile, width, '')}"]
    if any(profile.learns for profile in profiles):
        lines += ["", "Those that learn are shown before training."]
    return "\n".join([*lines, ""])


_TALLEST = 3.0
"""The density of a full block in a row; what is higher is cut off there."""
_CLEAREST = 10.0
"""The log-SNR of a full block in a row; pure noise is empty."""


def _mark(share: float) -> str:
    """A block of this height; something where there is anything."""
    marks = _BLOCKS if can_draw_blocks() else _ASCII
    level = round(share * (len(marks) - 1))
    return marks[min(max(level, int(share > 0)), len(marks) - 1)]


def _log_snr_line(profile: Profile, width: int, indent: str = " log-SNR ") -> str:
    """The log-SNR at five times, each under its place on the axis."""
    levels = _log_snr(profile)
    places = [round(share * (len(levels) - 1)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    words = [f"{round(levels[place], 1) + 0.0:.1f}" for place in places]
    line = ""
    for share, word in zip((0.0, 0.25, 0.5, 0.75, 1.0), words, strict=True):
        at = round(share * (width - len(word)))
        if at > len(line) or not line:
            line = line.ljust(at) + word
    return indent + line


def _log_snr(profile: Profile) -> list[float]:
    """With the lowest finite value instead of the minus infinity at zero SNR."""
    values = profile.process.log_snr(profile.u).tolist()
    low = min((value for value in values if math.isfinite(value)), default=0.0)
    return [value if math.isfinite(value) else low for value in values]


def _is_one(values: Tensor) -> bool:
    return bool((values - 1).abs().max() < 1e-3)


def _all_even(profiles: Sequence[Profile]) -> bool:
    """Whether every timestep is drawn equally often and counts as much: only the process is of interest."""
    return all(_is_one(one.density) and _is_one(one.effective) for one in profiles)


def _weighted(profiles: Sequence[Profile]) -> bool:
    return any(not bool((one.density - one.effective).abs().max() < 1e-6) for one in profiles)


def bars(title: str, values: Sequence[float], borders: Sequence[float], last: str) -> str:
    """Values between borders of unit time, each as wide as its part of time; `last` labels the noise end."""
    width = _columns()
    middles = ((column + 0.5) / width for column in range(width))
    columns = [values[bisect(borders, middle) - 1] for middle in middles]
    return "\n".join([*_plot(title, columns), _ends(width, last)])


def _columns(beside: int = 9) -> int:
    """Of a chart, if so many more stand beside it."""
    return max(16, min(_COLUMNS, (room() or 1000) - beside))


def last_time(timesteps: int | None) -> str:
    """The label of the noise end."""
    return f"{timesteps - 1} noise" if timesteps else "1 noise"


def _plot(title: str, values: Sequence[float], bottom: float = 0.0) -> list[str]:
    columns = [value - bottom for value in _binned(values, min(_columns(), len(values)))]
    top = max(columns) or 1.0
    marks = _BLOCKS if can_draw_blocks() else _ASCII
    steps = len(marks) - 1
    rows = []
    for row in reversed(range(_ROWS)):
        filled = (round(value / top * _ROWS * steps) - row * steps for value in columns)
        rows.append("".join(marks[min(max(level, 0), steps)] for level in filled))
    labels = [f"{top + bottom:8.3g}", *[" " * 8] * (_ROWS - 2), f"{bottom:8.3g}"]
    return [f"{'':9}{title}", *(f"{label} {row}" for label, row in zip(labels, rows, strict=True))]


def _binned(values: Sequence[float], count: int) -> list[float]:
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def _ends(width: int, last: str, indent: str = " " * 9) -> str:
    return f"{indent}{'data 0':<{max(width - len(last), 7)}}{last}"


def _fifths(profile: Profile) -> list[str]:
    parts = min(5, len(profile.u))
    names = [f"{100 * k // parts}-{100 * (k + 1) // parts} %" for k in range(parts)]
    rows = [["time", *names]]
    for name, values in (("draws", profile.density), ("weight", profile.effective)):
        shares = _binned(values.tolist(), parts)
        rows.append([name, *(f"{100 * share / (sum(shares) or 1):.1f} %" for share in shares)])
    return table(rows, right=True)


class MissingExtra(StepwellError, ImportError):
    """An optional dependency that this command needs is not installed."""


def check_save(path: Path | None) -> None:
    """Raise an error if --save cannot work, before anything is measured for it."""
    if path is not None:
        check_picture(path)
        blank(1.0, 1.0)


def blank(width: float, height: float) -> Any:
    """An empty matplotlib figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra(
            "--save needs matplotlib, which is not installed: pip install 'stepwell[report]'."
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def panels(count: int, width: float, height: float, margin: float = 0.0) -> tuple[Any, list[Any]]:
    """A figure with `count` panels, at most three in a row; width and height are those of a panel."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = blank(width * columns + margin, height * rows)
    axes = [axes for row in figure.subplots(rows, columns, squeeze=False) for axes in row]
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def time_axes(axes: Any, bottom: float | None = 0.0) -> None:
    """Limits, grid and spines of a chart over unit time."""
    axes.set_xlim(0, 1)
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the index-th of many lines."""
    dashes = ("-", "--", ":")[index // len(COLOURS) % 3]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": dashes, "linewidth": 1.6}


def write(figure: Any, path: Path) -> None:
    """Save a figure."""
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())
    except OSError as error:
        raise StepwellError(f"could not write {path}: {error.strerror}.") from error


def save(profiles: Sequence[Profile], path: Path) -> None:
    """Save a figure of profiles: density, effective weight where that is another, log-SNR if all is 1."""
    processes = {profile.parts[2]: profile.process for profile in profiles}
    common, labels = _labels([profile.parts for profile in profiles])
    drawn: dict[str, Callable[[Profile], Sequence[float]]] = {
        "density\n(uniform = 1)": lambda one: one.density.tolist(),
        "effective weight on the loss\n(mean = 1)": lambda one: one.effective.tolist(),
    }
    if _all_even(profiles):
        drawn = {"log-SNR": _log_snr}
    elif not _weighted(profiles):
        drawn.popitem()
    elif all(_is_one(profile.density) for profile in profiles):
        del drawn["density\n(uniform = 1)"]
        common += ": every timestep is drawn equally often"
    room = room_above(len(processes)) + _TITLE
    height = _PANEL * len(drawn) + room
    figure = blank(8, height)
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - room / height))
    figure.suptitle(common, fontsize=11, y=1 - 0.08 / height)
    panels = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, values) in zip(panels, drawn.items(), strict=True):
        curves = [(one.u.tolist(), values(one)) for one in profiles]
        for index, (u, heights) in enumerate(curves):
            axes.plot(u, heights, **line_style(index))
        time_axes(axes, None if values is _log_snr else 0.0)
        label_curves(axes, curves, labels)
        axes.set_ylabel(name)
    axes.set_xlabel(TIME_AXIS)
    noised_above(panels[0], processes, _PANEL - 0.6 / len(drawn))
    write(figure, path)


_PANEL, _TITLE = 3.2, 0.3
"""Inches of a panel with its labels, and of the title."""


def _labels(parts: Sequence[tuple[str, ...]]) -> tuple[str, list[str]]:
    """The parts that all profiles share, and each profile's other parts."""
    same = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    common = " · ".join(part for part, shared in zip(parts[0], same, strict=True) if shared)
    apart = [" · ".join(p for p, shared in zip(row, same, strict=True) if not shared) for row in parts]
    return common, apart

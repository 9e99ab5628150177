"""One page about a handful of runs: samples, densities, curves and a table (needs matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepwell.compare.colours import COLOURS
from stepwell.compare.curves import Curve, smoothed


def draw(curves: Sequence[Curve], rows: Sequence[Sequence[str]], metric: str, out: Path, title: str) -> None:
    """Write the page as a picture."""
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    methods = list(dict.fromkeys(curve.method for curve in curves))
    colours = {method: COLOURS[index % len(COLOURS)] for index, method in enumerate(methods)}
    figure = Figure(figsize=(4 * max(3, len(methods)), 12.5), layout="constrained")
    figure.suptitle(title, fontsize=14)
    grid = figure.add_gridspec(3, 2 * len(methods), height_ratios=(1.1, 1, 0.45))
    for index, method in enumerate(methods):
        axes = figure.add_subplot(grid[0, 2 * index : 2 * index + 2])
        axes.set_title(method, color=colours[method])
        axes.axis("off")
        sheets = sorted(next(c for c in curves if c.method == method).path.glob("samples/*.png"))
        if sheets:
            axes.imshow(imread(sheets[-1]), cmap="gray")
    middle = len(methods)
    _curves(figure.add_subplot(grid[1, :middle]), curves, colours, metric)
    _densities(figure.add_subplot(grid[1, middle:]), curves, colours)
    table = figure.add_subplot(grid[2, :])
    table.axis("off")
    drawn = table.table(cellText=[list(row) for row in rows[1:]], colLabels=list(rows[0]), loc="center")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(9)
    drawn.scale(1, 1.8)
    figure.savefig(out, dpi=110)


def _curves(axes: Any, curves: Sequence[Curve], colours: dict[str, str], metric: str) -> None:
    for curve in curves:
        seconds, values = curve.values("seconds"), smoothed(curve.values(metric))
        axes.plot(seconds[1:], values[1:], color=colours[curve.method], lw=1.5)
    for method, colour in colours.items():
        axes.plot([], [], color=colour, label=method)
    axes.set_yscale("log")
    axes.set_xlabel("training seconds (evaluation not counted)")
    name = {"none": "simple"}.get(metric.removeprefix("objective/"), metric.removeprefix("objective/"))
    axes.set_ylabel(f"held-out {name} loss, smoothed")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25, which="both")


def _densities(axes: Any, curves: Sequence[Curve], colours: dict[str, str]) -> None:
    for method, colour in colours.items():
        curve = next(c for c in curves if c.method == method)
        for name, style in (("density", "-"), ("effective_weight", ":")):
            values = curve.evaluations[-1][name]
            middle = [(index + 0.5) / len(values) for index in range(len(values))]
            axes.plot(middle, values, style, color=colour, lw=1.8)
    for name, style in (("draws (uniform = 1)", "-"), ("weight of the losses (mean = 1)", ":")):
        axes.plot([], [], style, color="0.4", label=name)
    axes.legend(frameon=False)
    axes.set_xlabel("unit time u: 0 is data, 1 is noise")
    axes.set_ylabel("where it looks, at the end")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)

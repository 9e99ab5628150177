"""docs/law.png: what was predicted, what the loops forecast and what was measured, by workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from results import HERE

if TYPE_CHECKING:
    from law_table import Point

COLOURS = {"linear": "#1f6fb4", "edm": "#3a9d5d", "flow": "#d1495b"}
TITLES = {"linear": "DDPM's linear chain", "edm": "EDM", "flow": "rectified flow"}
MARKERS = {"auto": "o", "neyman": "s"}
BEFORE = {"marker": "D", "markerfacecolor": "white", "linestyle": "", "markersize": 6}
IN_LOOP = {"marker": "x", "linestyle": "", "markersize": 6}
GREY, LIMITS = "#555555", (0.38, 1.2)


def process_of(workload: str) -> str:
    """Which process a workload trains."""
    return next(name for name in COLOURS if name in workload)


KINDS = {"": "", "lora": "LoRA, ", "cifar10": "CIFAR-10, "}
"""By the first word of a workload: what its row is called. From scratch on fashion16 needs no word."""


def kind_of(workload: str) -> str:
    """The first word of a workload, if it is of LoRA or of other images."""
    first = workload.partition("-")[0]
    return first if first in KINDS else ""


def order_of(workload: str) -> tuple[int, int, int]:
    """Processes as in the picture, then kinds, batches rising."""
    place = list(COLOURS).index(process_of(workload))
    return place, list(KINDS).index(kind_of(workload)), int(workload.rpartition("-")[2])


def title_of(workload: str) -> str:
    """A workload as a row's label."""
    return f"{KINDS[kind_of(workload)]}batch {workload.rpartition('-')[2]}"


def picture(known: Sequence[Point]) -> None:
    """Every workload in a row; on the right, measured against predicted and forecast."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (rows, cross) = plt.subplots(
        1, 2, figsize=(10.5, 5.8), dpi=130, gridspec_kw={"width_ratios": [1.15, 1]}
    )
    place, ticks = 0.0, dict[str, float]()
    for process in COLOURS:
        own = [name for name in dict.fromkeys(p.workload for p in known) if process_of(name) == process]
        rows.annotate(
            TITLES[process], (0.385, place), color=COLOURS[process], fontsize=9, va="center", weight="bold"
        )
        for workload in own:
            place += 1
            ticks[workload] = place
        place += 1.4
    for point in known:
        ratio, before, in_loop = point.judgement.images, point.predicted["same_loss"], point.in_loop.mean
        of_auto, colour = point.judgement.method == "auto", COLOURS[process_of(point.workload)]
        error = [[ratio.mean - ratio.low], [ratio.high - ratio.mean]]
        bar = {"color": colour, "capsize": 2, "alpha": 1 if of_auto else 0.5, "linestyle": ""}
        y = ticks[point.workload] + (0 if of_auto else 0.3)
        measured = {**bar, "marker": MARKERS[point.judgement.method], "markersize": 5}
        rows.errorbar(ratio.mean, y, xerr=error, zorder=4, **measured)
        cross.errorbar(in_loop, ratio.mean, yerr=error, **bar)
        for axes, height, ink in ((rows, ticks[point.workload], GREY), (cross, ratio.mean, colour)):
            axes.plot(before, height, color=ink, zorder=3, **BEFORE)
            axes.plot(in_loop, height, color=ink, zorder=5, **IN_LOOP)
    rows.set_yticks(list(ticks.values()), [title_of(workload) for workload in ticks], fontsize=8)
    rows.set_ylim(place - 0.4, -0.8)
    rows.axvline(1, color="#dddddd", linewidth=1, zorder=0)
    rows.set_xlabel("images for the same loss over the reference's")
    told = {"predicted before the runs": BEFORE, "pacer.forecast() in the reference's runs": IN_LOOP}
    for label, style in told.items():
        rows.plot([], [], label=label, color=GREY, **style)
    for method, marker in MARKERS.items():
        if any(point.judgement.method == method for point in known):
            rows.plot([], [], marker, color=GREY, markersize=5, label=f"{method}, measured (95 %)")
    figure.legend(*rows.get_legend_handles_labels(), frameon=False, fontsize=8, loc="upper center", ncols=4)
    cross.plot(LIMITS, LIMITS, color="#999999", linewidth=1, zorder=1)
    cross.set_ylim(LIMITS)
    cross.set_aspect("equal")
    cross.set_xlabel("predicted, or forecast")
    cross.set_ylabel("measured")
    for axes in (rows, cross):
        axes.set_xlim(LIMITS)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(HERE.parent / "docs" / "law.png")

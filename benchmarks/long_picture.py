"""docs/long.png: what `auto` needs and how its images compare after each quarter of long trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from results import HERE, read_ratio, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORKLOADS = {
    "linear": ("fashion16, linear", "#1f6fb4", "o"),
    "cosine": ("fashion16, cosine", "#8a5fbf", "s"),
    "cifar10": ("CIFAR-10, linear", "#e08a1e", "^"),
    "flow": ("fashion16, rectified flow", "#d1495b", "D"),
}
"""Title, colour and marker."""
PANELS = {
    "images to the other's loss there": "images to the loss that the reference has there, over its own",
    "distance over the other's there": "Fréchet distance over the reference's",
}
FORECAST = "by the other's own forecast"


def picture() -> None:
    """Both panels, from the record `long`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in rows_of("long") if row["method"] == "auto"]
    figure, panels = plt.subplots(1, len(PANELS), figsize=(10.5, 4.2), dpi=130)
    for axes, (column, title) in zip(panels, PANELS.items(), strict=True):
        for place, workload in enumerate(WORKLOADS):
            # What was not measured, or not reached by every run, has no interval.
            own = [row for row in rows if row["workload"] == workload and " to " in row[column]]
            if own:
                _line(axes, own, column, 1.2 * (place - 1.5))
        axes.axhline(1, color="#dddddd", linewidth=1, zorder=0)
        axes.set_xticks([25, 50, 75, 100], ["25 %", "50 %", "75 %", "100 %"])
        axes.set_xlim(18, 107)
        axes.set_xlabel("of the training")
        axes.set_title(title, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].plot([], [], "x", color="#555555", label="forecast until then by the reference's runs")
    figure.legend(
        *panels[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="lower center", ncols=5
    )
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(HERE.parent / "docs" / "long.png")


def _line(axes: Axes, rows: list[dict[str, str]], column: str, aside: float) -> None:
    """A column of one workload over its quarters, a little aside of the others, and what was forecast."""
    name, colour, marker = WORKLOADS[rows[0]["workload"]]
    ratios = [read_ratio(row[column], row["seeds"]) for row in rows]
    at = [25 * int(row["after"][0]) + aside for row in rows]
    errors = [[one.mean - one.low for one in ratios], [one.high - one.mean for one in ratios]]
    style = {"color": colour, "marker": marker, "markersize": 5, "linestyle": "-" if len(at) > 1 else ""}
    axes.errorbar(at, [one.mean for one in ratios], yerr=errors, label=name, capsize=2, **style)
    if column.startswith("images"):
        told = [read_ratio(row[FORECAST], row["seeds"]).mean for row in rows]
        axes.plot(at, told, "x", color=colour, markersize=6, zorder=5)

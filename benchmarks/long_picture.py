"""docs/long.png: what `auto` needs and how its images compare after each quarter of long trainings."""

from __future__ import annotations

from all_studies import read_ratio, rows_of
from results import HERE

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
        for place, (workload, (name, colour, marker)) in enumerate(WORKLOADS.items()):
            own = [row for row in rows if row["workload"] == workload and "(" in row[column]]
            # Where some run never reached that loss there is no ratio.
            own = [row for row in own if "not reached" not in row[column]]
            if not own:
                continue
            ratios = [read_ratio(row[column], row["seeds"]) for row in own]
            quarters = [int(row["after"][0]) for row in own]
            at = [25 * quarter + 1.2 * (place - 1.5) for quarter in quarters]
            means = [ratio.mean for ratio in ratios]
            errors = [
                [ratio.mean - ratio.low for ratio in ratios],
                [ratio.high - ratio.mean for ratio in ratios],
            ]
            line = "-" if len(own) > 1 else ""
            style = {"color": colour, "marker": marker, "markersize": 5, "capsize": 2, "linestyle": line}
            axes.errorbar(at, means, yerr=errors, label=name, **style)
            if column.startswith("images"):
                told = [read_ratio(row[FORECAST], row["seeds"]).mean for row in own]
                axes.plot(at, told, "x", color=colour, markersize=6, zorder=5)
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

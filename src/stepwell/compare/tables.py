"""The tables of a comparison, as text in cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stepwell.compare.results import Outcome
from stepwell.compare.stats import end
from stepwell.compare.verdict import Judgement, bits_of, distance_of, metric_name, over_workloads
from stepwell.compare.views import Table

RATIOS = ("images to target", "seconds to target", "end", "area", "bits", "distance")
CAPTION = (
    "Ratios to the method in the second column, with 95 % intervals; below 1 is better. Target: that "
    "method's final smoothed value in what is judged by. Then plain values at the end, mean over seeds."
)


def workload_table(
    runs: dict[str, list[Outcome]], judgements: Sequence[Judgement], metrics: Sequence[str]
) -> Table:
    """Every method of one workload: ratios with intervals, then plain values."""
    columns: dict[str, Callable[[Outcome], float]] = {
        metric_name(metric): lambda run, metric=metric: end(run, metric)  # type: ignore[misc]
        for metric in metrics
    }
    columns |= {"bits per dimension": bits_of, "Fréchet distance": distance_of}
    by_method = {judgement.method: judgement for judgement in judgements}
    rows = []
    for method, mine in runs.items():
        judgement = by_method.get(method)
        rates = sorted({f"{run.recipe.get('lr', math.nan):g}" for run in mine})
        plain = [_mean([value(run) for run in mine]) for value in columns.values()]
        rows.append((method, *_ratios(judgement), str(len(mine)), ", ".join(rates), *plain))
    names = ("method", "against", "judged by", *RATIOS, "seeds", "learning rate", *columns)
    return Table(CAPTION, names, tuple(rows))


def _ratios(judgement: Judgement | None) -> tuple[str, ...]:
    if judgement is None:
        return ("", "", *[""] * len(RATIOS))
    found = (judgement.images, judgement.seconds, judgement.end, judgement.area)
    scored = (judgement.bits, judgement.distance)
    cells = (*map(str, found), *(str(ratio) if ratio.seeds else "" for ratio in scored))
    return (judgement.against, metric_name(judgement.metric), *cells)


def _mean(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return f"{sum(finite) / len(finite):.4g}" if finite else ""


def overall_table(judgements: Sequence[Judgement]) -> Table:
    """Every method over all workloads: geometric means of the images to the target, and each workload's."""
    workloads = list(dict.fromkeys(judgement.workload for judgement in judgements))
    by_place = {(judgement.method, judgement.workload): judgement for judgement in judgements}
    rows = []
    for judgement in {judgement.method: judgement for judgement in judgements}.values():
        cells = [by_place.get((judgement.method, workload)) for workload in workloads]
        each = [str(cell.images) if cell else "" for cell in cells]
        whole = str(over_workloads(judgements, judgement.method)) if all(cells) else ""
        rows.append((judgement.method, judgement.against, metric_name(judgement.metric), whole, *each))
    caption = (
        "Images to the other method's final value, over its own: geometric mean over workloads, and each."
    )
    return Table(caption, ("method", "against", "judged by", "all workloads", *workloads), tuple(rows))

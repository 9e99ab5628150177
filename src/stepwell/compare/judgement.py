"""One method against another on one workload, over the seeds that they share; and the tables of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.compare.results import Outcome
from stepwell.compare.stats import (
    Ratio,
    area_ratio,
    end,
    end_ratio,
    geometric_mean,
    paired,
    time_ratio,
)
from stepwell.compare.views import Cell, Table
from stepwell.runs.metrics import SCORED, Metric

COMPARED = tuple(metric for metric in SCORED if metric.heading)
"""The metrics of finished runs that have ratios."""


@dataclass(frozen=True)
class Judgement:
    """A method relative to the one it is judged against: every ratio is better below 1."""

    workload: str
    method: str
    against: str
    metric: Metric
    """The held-out loss that it is judged by."""
    images: Ratio
    """To the other method's final smoothed loss, relative to the other's own."""
    seconds: Ratio
    end: Ratio
    area: Ratio
    scores: dict[str, Ratio]
    """By the key of each compared metric; without seeds where it was not measured."""
    per_seed: tuple[float, ...]
    """The ratios behind `images`."""


def judge(workload: str, runs: Sequence[Outcome], others: Sequence[Outcome], metric: Metric) -> Judgement:
    """All ratios of one method's runs to another's."""
    by_seed = {run.seed: run for run in others}
    pairs = [(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]
    images = tuple(time_ratio(run, other, metric.key, "images") for run, other in pairs)
    return Judgement(
        workload,
        runs[0].method,
        others[0].method,
        metric,
        paired(images),
        paired([time_ratio(run, other, metric.key, "seconds") for run, other in pairs]),
        paired([end_ratio(run, other, metric.key) for run, other in pairs]),
        paired([area_ratio(run, other, metric.key) for run, other in pairs]),
        {scored.key: _score_ratio(pairs, scored) for scored in COMPARED},
        images,
    )


def _score_ratio(pairs: Sequence[tuple[Outcome, Outcome]], metric: Metric) -> Ratio:
    errors = [[metric.error(metric.read(run.score)) for run in pair] for pair in pairs]
    return paired([own / other for own, other in errors if math.isfinite(own) and other > 0])


def over_workloads(judgements: Sequence[Judgement], method: str) -> Ratio:
    """The geometric mean of the images to the target over all workloads, on the seeds they share."""
    per_workload = [judgement.per_seed for judgement in judgements if judgement.method == method]
    every = [ratio for ratios in per_workload for ratio in ratios]
    missed = sum(not math.isfinite(ratio) for ratio in every)
    if missed:
        return Ratio(math.inf, math.nan, math.inf, math.inf, len(every), missed)
    fewest = min(map(len, per_workload))
    return geometric_mean([ratios[:fewest] for ratios in per_workload])


CAPTION = (
    "Ratios to the method in the second column, with 95 % intervals; below 1 is better. Target: that "
    "method's final smoothed value in what is judged by. Then plain values at the end, mean over seeds."
)


def workload_table(
    runs: dict[str, list[Outcome]], judgements: Sequence[Judgement], losses: Sequence[Metric]
) -> Table:
    """Every method of one workload: ratios with intervals, then plain values."""
    compared = measured([run for own in runs.values() for run in own])
    by_method = {judgement.method: judgement for judgement in judgements}
    rows = []
    for method, own in runs.items():
        rates = sorted({f"{run.recipe.lr:g}" for run in own})
        ends = [[end(run, loss.key) for run in own] for loss in losses]
        scores = [[metric.read(run.score) for run in own] for metric in compared]
        plain = [_mean_finite(values) for values in (*ends, *scores)]
        rows.append((method, *_ratios(by_method.get(method), compared), len(own), ", ".join(rates), *plain))
    ratios = ("images to target", "seconds to target", "end", "area", *(m.heading for m in compared))
    values = (metric.column for metric in (*losses, *compared))
    columns = ("method", "against", "judged by", *ratios, "seeds", "learning rate", *values)
    return Table(CAPTION, columns, tuple(rows))


def measured(runs: Sequence[Outcome]) -> list[Metric]:
    """The compared metrics that such runs have."""
    return [m for m in COMPARED if not m.needs or any(getattr(run.recipe, m.needs) for run in runs)]


def _ratios(judgement: Judgement | None, compared: Sequence[Metric]) -> tuple[Cell, ...]:
    if judgement is None:
        return (None,) * (6 + len(compared))
    curves = (judgement.images, judgement.seconds, judgement.end, judgement.area)
    scores = [judgement.scores[metric.key] for metric in compared]
    known = [ratio if ratio.seeds else None for ratio in scores]
    return (judgement.against, judgement.metric.title, *curves, *known)


def _mean_finite(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def overall_table(judgements: Sequence[Judgement]) -> Table:
    """Every method's images to the target: the geometric mean over workloads, and each workload."""
    workloads = list(dict.fromkeys(judgement.workload for judgement in judgements))
    images = {(judgement.method, judgement.workload): judgement.images for judgement in judgements}
    rows = []
    for judgement in {judgement.method: judgement for judgement in judgements}.values():
        each = [images.get((judgement.method, workload)) for workload in workloads]
        mean = None if None in each else over_workloads(judgements, judgement.method)
        rows.append((judgement.method, judgement.against, judgement.metric.title, mean, *each))
    caption = (
        "Images to the other method's final value, over its own: geometric mean over workloads, and each."
    )
    return Table(caption, ("method", "against", "judged by", "all workloads", *workloads), tuple(rows))

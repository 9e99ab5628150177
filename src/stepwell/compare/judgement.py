"""One method against another on one workload, over the seeds that they share; and the tables of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.compare.curves import comparable, end_ratio, same_loss_ratio, to_end_ratio
from stepwell.compare.results import Outcome
from stepwell.compare.stats import Ratio, geometric_mean, paired
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
    """Images for the same loss; no mean where the curves are too flat to say."""
    seconds: Ratio
    """Training seconds for the same loss."""
    images_to_end: Ratio
    """Images to the other method's final loss: lower than `images` where the lead grows. Not symmetric."""
    end: Ratio
    """Final loss."""
    scores: dict[str, Ratio]
    """By the key of each compared metric; without seeds where it was not measured alike."""
    per_seed: dict[int, float]
    """The ratios behind `images`."""

    @property
    def decisive(self) -> Ratio:
        """What the verdict is by: images for the same loss, or the final loss where the curves do not say."""
        return self.end if self.images.missed else self.images


def judge(workload: str, runs: Sequence[Outcome], others: Sequence[Outcome], metric: Metric) -> Judgement:
    """All ratios of one method's runs to another's, on the seeds whose runs can be compared."""
    by_seed = {run.seed: run for run in others}
    pairs = [(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]
    pairs = [(run, other) for run, other in pairs if comparable(run, other)]
    images = {run.seed: same_loss_ratio(run, other, metric.key) for run, other in pairs}
    return Judgement(
        workload,
        runs[0].method,
        others[0].method,
        metric,
        paired(list(images.values()), TOO_FLAT),
        paired([same_loss_ratio(run, other, metric.key, "seconds") for run, other in pairs], TOO_FLAT),
        paired([to_end_ratio(run, other, metric.key) for run, other in pairs]),
        paired([end_ratio(run, other, metric.key) for run, other in pairs], "diverged"),
        {scored.key: _score_ratio(pairs, scored) for scored in COMPARED},
        images,
    )


TOO_FLAT = "curves do not say"
"""Instead of a ratio of images, where the runs have no losses in common or have flattened out."""


def _score_ratio(pairs: Sequence[tuple[Outcome, Outcome]], metric: Metric) -> Ratio:
    """Of values that were measured alike, after equally long runs."""
    alike = [
        (metric.error(metric.read(run.score)), metric.error(metric.read(other.score)))
        for run, other in pairs
        if run.recipe.limit == other.recipe.limit and metric.measured_alike(run.score, other.score)
    ]
    return paired([own / other for own, other in alike if math.isfinite(own) and other > 0])


def over_workloads(judgements: Sequence[Judgement], method: str) -> Ratio:
    """The geometric mean over all workloads of the images for the same loss, on the seeds they share."""
    per_workload = [judgement.per_seed for judgement in judgements if judgement.method == method]
    seeds = sorted(set.intersection(*map(set, per_workload)))
    ratios = [[by_seed[seed] for seed in seeds] for by_seed in per_workload]
    missed = sum(not math.isfinite(ratio) for each in ratios for ratio in each)
    if missed:
        total = len(seeds) * len(ratios)
        return Ratio(math.inf, math.nan, math.inf, math.inf, total, missed, TOO_FLAT)
    return geometric_mean(ratios)


CAPTION = (
    "Ratios to the method in the second column, with 95 % intervals; below 1 is better. The verdict is by "
    "the images for the same loss. Then plain values of the last evaluation, mean over seeds."
)


RATIOS = ("images for same loss", "seconds for same loss", "images to other's end", "end")
"""Headings of the ratios of learning curves."""


def workload_table(
    runs: dict[str, list[Outcome]], judgements: Sequence[Judgement], losses: Sequence[Metric]
) -> Table:
    """Every method of one workload: ratios with intervals, then plain values."""
    compared = measured([run for own in runs.values() for run in own])
    by_method = {judgement.method: judgement for judgement in judgements}
    rows = []
    for method, own in runs.items():
        rates = sorted({f"{run.recipe.lr:g}" for run in own})
        finished = [run for run in own if run.finished]
        ends = [[run.values(loss.key)[-1] for run in finished] for loss in losses]
        scores = [[metric.read(run.score) for run in finished] for metric in compared]
        plain = [_mean_finite(values) for values in (*ends, *scores)]
        ratios = _ratios(by_method.get(method), compared)
        rows.append((method, *ratios, len(finished), ", ".join(rates), *plain))
    values = (metric.column for metric in (*losses, *compared))
    headings = (metric.heading for metric in compared)
    columns = ("method", "against", "judged by", *RATIOS, *headings, "seeds", "learning rate", *values)
    images = [metric.heading for metric in compared if metric.of_images]
    leading = ("method", RATIOS[0], *(loss.column for loss in losses[:1]), *(images or RATIOS[1:])[:1])
    return Table(CAPTION, columns, tuple(rows), leading)


def measured(runs: Sequence[Outcome]) -> list[Metric]:
    """The compared metrics that such runs have."""
    return [m for m in COMPARED if not m.needs or any(getattr(run.recipe, m.needs) for run in runs)]


def _ratios(judgement: Judgement | None, compared: Sequence[Metric]) -> tuple[Cell, ...]:
    if judgement is None:
        return (None,) * (2 + len(RATIOS) + len(compared))
    curves = (judgement.images, judgement.seconds, judgement.images_to_end, judgement.end)
    scores = [judgement.scores[metric.key] for metric in compared]
    known = [ratio if ratio.seeds else None for ratio in scores]
    return (judgement.against, judgement.metric.title, *curves, *known)


def _mean_finite(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def overall_table(judgements: Sequence[Judgement]) -> Table:
    """Every method's images for the same loss: the geometric mean over workloads, and each workload."""
    workloads = list(dict.fromkeys(judgement.workload for judgement in judgements))
    images = {(judgement.method, judgement.workload): judgement.images for judgement in judgements}
    rows = []
    for judgement in {judgement.method: judgement for judgement in judgements}.values():
        each = [images.get((judgement.method, workload)) for workload in workloads]
        mean = None if None in each else over_workloads(judgements, judgement.method)
        rows.append((judgement.method, judgement.against, judgement.metric.title, mean, *each))
    caption = "Images for the same loss over the other method's: geometric mean over workloads, and each."
    return Table(caption, ("method", "against", "judged by", "all workloads", *workloads), tuple(rows))

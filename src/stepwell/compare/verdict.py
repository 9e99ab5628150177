"""One method against another on one workload: every score, over the seeds they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepwell.compare.results import Outcome
from stepwell.compare.stats import (
    FEWEST_SEEDS,
    Ratio,
    area_ratio,
    end_ratio,
    geometric_mean,
    holm,
    paired,
    reached,
    smoothed,
    time_ratio,
)

BITS = "bits per dimension"
DISTANCE = "Fréchet distance"


@dataclass(frozen=True)
class Judgement:
    """A method over what it is judged against; everything below 1 is better."""

    workload: str
    method: str
    against: str
    metric: str
    images: Ratio
    """To the other's final smoothed value, over its own; and so on."""
    seconds: Ratio
    end: Ratio
    area: Ratio
    bits: Ratio
    distance: Ratio
    per_seed: tuple[float, ...]
    """The ratios behind `images`."""


def judge(workload: str, mine: Sequence[Outcome], theirs: Sequence[Outcome], metric: str) -> Judgement:
    """All scores of one method against another."""
    others = {run.seed: run for run in theirs}
    pairs = [(run, others[run.seed]) for run in mine if run.seed in others]
    images = tuple(time_ratio(run, other, metric, "images") for run, other in pairs)
    return Judgement(
        workload,
        mine[0].method,
        theirs[0].method,
        metric,
        paired(images),
        paired([time_ratio(run, other, metric, "seconds") for run, other in pairs]),
        paired([end_ratio(run, other, metric) for run, other in pairs]),
        paired([area_ratio(run, other, metric) for run, other in pairs]),
        _scored(pairs, bits_of),
        _scored(pairs, distance_of),
        images,
    )


def _scored(pairs: Sequence[tuple[Outcome, Outcome]], value: Callable[[Outcome], float]) -> Ratio:
    found = [(value(run), value(other)) for run, other in pairs]
    return paired([one / other for one, other in found if math.isfinite(one) and other > 0])


def bits_of(run: Outcome) -> float:
    """Bits per dimension of a scored run; NaN where they have no meaning."""
    return float(run.score.get("bits_per_dimension", {}).get("total", math.nan))


def distance_of(run: Outcome) -> float:
    """The Fréchet distance of a scored run, on whatever features its recipe names; or NaN."""
    return math.nan if run.distances is None else float(run.distances[1]["frechet_distance"])


def seconds_to(run: Outcome, baseline: Outcome, metric: str) -> float:
    """Training seconds to the baseline's final smoothed value; infinite if it was not reached."""
    return reached(run, metric, smoothed(baseline.values(metric))[-1], "seconds")


NAMES = {"none": "simple loss", "vlb": "bound"}


def metric_name(key: str) -> str:
    """In words: simple loss, bound, min-snr loss."""
    name = key.removeprefix("objective/")
    return NAMES.get(name, f"{name} loss")


def verdict(judgements: Sequence[Judgement], metric: str) -> list[str]:
    """Sentences about the baseline's challengers, the one to remember first."""
    if not judgements:
        return ["No verdict: nothing to compare yet. Two methods with finished runs are needed."]
    if max(judgement.end.seeds for judgement in judgements) < FEWEST_SEEDS:
        return [_too_few(judgements), *_leaders(judgements)]
    workloads = list(dict.fromkeys(judgement.workload for judgement in judgements))
    sentences = _overall(judgements, metric, workloads) if len(workloads) > 1 else []
    for workload in workloads:
        there = [judgement for judgement in judgements if judgement.workload == workload]
        prefix = f"{workload}: " if len(workloads) > 1 else ""
        sentences += [prefix + sentence for sentence in _on_one(there, metric)]
    return sentences


def _too_few(judgements: Sequence[Judgement]) -> str:
    seeds = max(judgement.end.seeds for judgement in judgements)
    count = {0: "no seed is", 1: "1 seed is"}.get(seeds, f"{seeds} seeds are")
    return f"No verdict: {count} shared by two methods, and a verdict needs at least {FEWEST_SEEDS}."


def _leaders(judgements: Sequence[Judgement]) -> list[str]:
    best = min(judgements, key=lambda judgement: judgement.end.mean)
    if best.end.seeds == 0:
        return []
    return [
        f"So far {best.method} ends at {best.end} of {best.against}'s {metric_name(best.metric)}: "
        "a look, not a result."
    ]


def _overall(judgements: Sequence[Judgement], metric: str, workloads: Sequence[str]) -> list[str]:
    means = {j.method: over_workloads(judgements, j.method) for j in judgements if j.metric == metric}
    winners = {method: mean for method, mean in means.items() if mean.lower}
    if not winners:
        return [
            f"Over {len(workloads)} workloads no method surely needs fewer images to its baseline's "
            f"{metric_name(metric)}."
        ]
    best = min(winners, key=lambda method: winners[method].mean)
    against = next(judgement.against for judgement in judgements if judgement.method == best)
    return [
        f"Over {len(workloads)} workloads {best} reaches {against}'s final {metric_name(metric)} with "
        f"{winners[best]} of the images."
    ]


def over_workloads(judgements: Sequence[Judgement], method: str) -> Ratio:
    """The geometric mean of the images to the target over all workloads, with seeds in common."""
    mine = [judgement.per_seed for judgement in judgements if judgement.method == method]
    least = min(len(ratios) for ratios in mine)
    if any(not math.isfinite(ratio) for ratios in mine for ratio in ratios):
        missed = sum(not math.isfinite(ratio) for ratios in mine for ratio in ratios)
        return Ratio(math.inf, math.nan, math.inf, math.inf, sum(map(len, mine)), missed)
    return geometric_mean([ratios[:least] for ratios in mine])


def _on_one(judgements: Sequence[Judgement], metric: str) -> list[str]:
    """About one workload: who wins, who pays for it elsewhere, who loses."""
    winners = sorted(
        (j for j in judgements if j.images.lower), key=lambda j: (j.metric != metric, j.images.mean)
    )
    sentences = [_win(judgement) for judgement in winners[:1]] + [_beside(j) for j in winners[:1]]
    sentences += [f"{_win(judgement)} {_beside(judgement)}" for judgement in winners[1:]]
    if not any(judgement.metric == metric for judgement in winners):
        bases = (
            ", ".join(dict.fromkeys(j.against for j in judgements if j.metric == metric)) or "its baseline"
        )
        sentences.insert(0, f"No method surely reaches {bases}'s final {metric_name(metric)} sooner.")
    losers = [judgement for judgement in judgements if judgement.end.higher]
    if losers:
        told = "; ".join(f"{j.method} {j.end} of {j.against}'s {metric_name(j.metric)}" for j in losers)
        sentences.append(f"Surely worse at the end: {told}.")
    return sentences


def _win(judgement: Judgement) -> str:
    return (
        f"{judgement.method} reaches {judgement.against}'s final {metric_name(judgement.metric)} with "
        f"{judgement.images} of the images."
    )


def _beside(judgement: Judgement) -> str:
    """What the images do not tell: the time they took, and what came out of them."""
    sentence = f"That took {judgement.seconds} of {judgement.against}'s training time"
    distance = judgement.distance
    if distance.seeds < FEWEST_SEEDS:
        return sentence + "."
    word = "better" if distance.lower else "worse" if distance.higher else "undecided"
    return f"{sentence}; the Fréchet distance at the end is {word}, {distance} of {judgement.against}'s."


def error_rates(judgements: Sequence[Judgement]) -> list[str]:
    """How often claims like these are wrong, and which hold all together."""
    count = len(judgements)
    if count == 0:
        return []
    notes = [
        "Ratios are below 1 where a method is better. Intervals: 95 %, paired over seeds, t on logarithms. "
        "Where nothing differs, a comparison claims a difference in at most 5 % of studies; what is said "
        "about distances beside it errs as often again.",
    ]
    if count > 1:
        held = holm([j.images.chance if j.images.lower else 1.0 for j in judgements])
        names = [_place(j, judgements) for j, holds in zip(judgements, held, strict=True) if holds]
        told = ", ".join(names) if names else "none"
        notes.append(
            f"{count} comparisons were made, each at that rate; wins that hold for all of them together "
            f"(Holm): {told}."
        )
    return notes


def _place(judgement: Judgement, judgements: Sequence[Judgement]) -> str:
    several = len({other.workload for other in judgements}) > 1
    return f"{judgement.method} on {judgement.workload}" if several else judgement.method

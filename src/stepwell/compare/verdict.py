"""The verdict of a comparison in sentences, and how often such sentences are wrong."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.compare.judgement import COMPARED, Judgement, over_workloads
from stepwell.compare.results import Outcome
from stepwell.compare.stats import FEWEST_SEEDS, holm
from stepwell.runs.metrics import Metric


def verdict(judgements: Sequence[Judgement], metric: Metric) -> list[str]:
    """Sentences about the methods, the most important one first; `metric` is the study's own."""
    if not judgements:
        return ["No verdict: nothing to compare yet. Two methods with finished runs are needed."]
    if max(judgement.end.seeds for judgement in judgements) < FEWEST_SEEDS:
        return _too_few(judgements)
    workloads = list(dict.fromkeys(judgement.workload for judgement in judgements))
    if len(workloads) == 1:
        return _on_workload(judgements, metric)
    sentences = [_overall(judgements, metric, len(workloads))]
    for workload in workloads:
        there = [judgement for judgement in judgements if judgement.workload == workload]
        sentences += [f"{workload}: {sentence}" for sentence in _on_workload(there, metric)]
    return sentences


def of_one_method(workload: str, runs: Sequence[Outcome], metric: Metric) -> str:
    """The loss of a method that is alone, as `stepwell evaluate` prints it; of several seeds, their mean."""
    finished = [run for run in runs if run.finished] or runs
    values = [run.values(metric.key)[-1] for run in finished]
    first, form = finished[0], metric.format
    steps = first.evaluations[-1]["step"]
    when = f"after {steps:,} steps" if first.finished else f"at step {steps:,} of {first.recipe.steps:,}"
    if len(values) > 1:
        when += f", mean of {len(values)} seeds from {min(values):{form}} to {max(values):{form}}"
    return f"{first.method} on {workload}: {metric.title} {sum(values) / len(values):{form}} {when}."


def _too_few(judgements: Sequence[Judgement]) -> list[str]:
    best = min(judgements, key=lambda judgement: judgement.end.mean)
    seeds = max(judgement.end.seeds for judgement in judgements)
    count = {0: "no seed is", 1: "1 seed is"}.get(seeds, f"{seeds} seeds are")
    sentences = [f"No verdict: {count} shared by two methods, and a verdict needs at least {FEWEST_SEEDS}."]
    if best.end.seeds:
        sentences.append(
            f"So far {best.method} ends at {best.end} of {best.against}'s {best.metric.title}: "
            "an impression, not a result."
        )
    return sentences


def _overall(judgements: Sequence[Judgement], metric: Metric, workloads: int) -> str:
    means = {j.method: over_workloads(judgements, j.method) for j in judgements if j.metric == metric}
    winners = {method: mean for method, mean in means.items() if mean.lower}
    if not winners:
        return (
            f"Over {workloads} workloads no method surely needs fewer images than its baseline for the same "
            f"{metric.title}."
        )
    best = min(winners, key=lambda method: winners[method].mean)
    against = next(judgement.against for judgement in judgements if judgement.method == best)
    return (
        f"Over {workloads} workloads {best} needs {winners[best]} of {against}'s images for the same "
        f"{metric.title}."
    )


def _on_workload(judgements: Sequence[Judgement], metric: Metric) -> list[str]:
    """Which methods win, what that costs, and which ones lose."""
    winners = sorted(
        (j for j in judgements if j.decisive.lower), key=lambda j: (j.metric != metric, j.decisive.mean)
    )
    sentences = [text for winner in winners[:1] for text in (_win(winner), _cost(winner)) if text]
    sentences += [f"{_win(winner)} {_cost(winner)}".rstrip() for winner in winners[1:]]
    if not any(winner.metric == metric for winner in winners):
        baselines = dict.fromkeys(j.against for j in judgements if j.metric == metric)
        names = ", ".join(baselines) or "its baseline"
        sentences.insert(0, f"No method surely needs fewer images than {names} for the same {metric.title}.")
    sentences += [
        f"{j.method} ends at {j.end} of {j.against}'s {j.metric.title}; the images that this saves are "
        f"undecided, {j.images}."
        for j in judgements
        if j.end.lower and not j.decisive.lower
    ]
    losers = [_loss(j) for j in judgements if j.decisive.higher or j.end.higher]
    if losers:
        sentences.append(f"Surely worse: {'; '.join(losers)}.")
    return sentences


def _win(judgement: Judgement) -> str:
    other, title = judgement.against, judgement.metric.title
    if judgement.images.missed:
        return f"{judgement.method} ends at {judgement.end} of {other}'s {title}."
    return f"{judgement.method} needs {judgement.images} of {other}'s images for the same {title}."


def _loss(judgement: Judgement) -> str:
    """What is significantly worse: the images, the end, or both."""
    parts = []
    if judgement.images.higher:
        parts.append(f"needs {judgement.images} of {judgement.against}'s images")
    if judgement.end.higher:
        parts.append(f"ends at {judgement.end} of {judgement.against}'s {judgement.metric.title}")
    return f"{judgement.method} {' and '.join(parts)}"


def _cost(judgement: Judgement) -> str:
    """What a win took in training time, and what its images are like."""
    parts = []
    if not judgement.seconds.missed:
        parts.append(f"That took {judgement.seconds} of {judgement.against}'s training time")
    for metric in COMPARED:
        ratio = judgement.scores[metric.key]
        if metric.of_images and ratio.seeds >= FEWEST_SEEDS:
            word = "better" if ratio.lower else "worse" if ratio.higher else "undecided"
            parts.append(f"the {metric.error_title} at the end is {word}, {ratio} of {judgement.against}'s")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def error_rates(judgements: Sequence[Judgement]) -> list[str]:
    """How often claims like these are wrong, and which ones hold all together."""
    count = len(judgements)
    if count == 0:
        return []
    notes = [
        "Ratios are below 1 where a method is better. Intervals: 95 %, paired over seeds, t on logarithms. "
        "The verdict is by the images for the same loss, over the losses that both runs of a seed go through "
        "after warm-up; by the final loss where the curves do not say. Where nothing differs, a comparison "
        "claims a difference in at most 5 % of studies; what is said about ends and distances beside it "
        "errs as often again.",
    ]
    if count > 1:
        held = holm([j.decisive.p_value if j.decisive.lower else 1.0 for j in judgements])
        several = len({judgement.workload for judgement in judgements}) > 1
        names = [
            f"{judgement.method} on {judgement.workload}" if several else judgement.method
            for judgement, holds in zip(judgements, held, strict=True)
            if holds
        ]
        notes.append(
            f"{count} comparisons were made, each at that rate; wins that hold for all of them together "
            f"(Holm): {', '.join(names) or 'none'}."
        )
    return notes

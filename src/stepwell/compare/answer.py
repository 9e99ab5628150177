"""The picture that answers the question: every method's ratio beside the line at 1, the best one first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from stepwell.compare.grouping import Grouped
from stepwell.compare.judgement import Judgement, over_workloads
from stepwell.compare.stats import Ratio
from stepwell.compare.views import Answer, AnswerRow


def answers(grouped: Grouped, judgements: dict[str, list[Judgement]]) -> tuple[Answer, ...]:
    """One picture for each workload that has a comparison; before them one over all, if there are several."""
    compared = {name: found for name, found in judgements.items() if found}
    pictures = [_of_workload(name, list(grouped[name]), found) for name, found in compared.items()]
    over_all = _over_all(compared) if len(grouped) > 1 and len(compared) == len(grouped) else []
    return (*over_all, *pictures)


def _of_workload(name: str, methods: Sequence[str], judgements: Sequence[Judgement]) -> Answer:
    by_method = {judgement.method: judgement for judgement in judgements}
    baselines = {judgement.against for judgement in judgements}
    usual, against = _usual(judgements)
    rows = []
    for method in methods:
        if method in by_method:
            own = by_method[method]
            differs = (_what(own), own.against) != (usual, against)
            title = f"final {own.metric.title}" if own.images.missed else own.metric.title
            note = f"{title}, over {own.against}'s" if differs else ""
            rows.append(AnswerRow(method, own.decisive, note))
        else:
            rows.append(AnswerRow(method, None, "baseline" if method in baselines else "not compared"))
    return Answer(name, f"{usual}, over {against}'s", _best_first(rows))


def _over_all(judgements: dict[str, list[Judgement]]) -> list[Answer]:
    """The geometric means over workloads of the methods that all of them have; nothing if there are none."""
    together = [judgement for found in judgements.values() for judgement in found]
    counts = Counter(judgement.method for judgement in together)
    everywhere = {j.method: j for j in together if counts[j.method] == len(judgements)}
    _, against = _usual(together)
    means = {method: over_workloads(together, method) for method in everywhere}
    rows = [
        AnswerRow(
            method, mean, f"over {everywhere[method].against}'s" * (everywhere[method].against != against)
        )
        for method, mean in means.items()
        if mean.seeds
    ]
    if not rows:
        return []
    baseline = AnswerRow(against, None, "baseline")
    measure = f"images for the same loss, over {against}'s: geometric mean"
    return [Answer(f"All {len(judgements)} workloads", measure, _best_first([baseline, *rows]))]


def _what(judgement: Judgement) -> str:
    title = judgement.metric.title
    return f"final {title}" if judgement.images.missed else f"images for the same {title}"


def _usual(judgements: Sequence[Judgement]) -> tuple[str, str]:
    """What most methods are judged by, and against whom; the first of equally many."""
    return Counter((_what(judgement), judgement.against) for judgement in judgements).most_common(1)[0][0]


def _best_first(rows: Sequence[AnswerRow]) -> tuple[AnswerRow, ...]:
    """By their means; the baseline stands at 1, and what has no mean comes last."""
    return tuple(sorted(rows, key=lambda row: _place(row.ratio, row.note)))


def _place(ratio: Ratio | None, note: str) -> float:
    if ratio is None:
        return 1.0 if note == "baseline" else math.inf
    return math.inf if ratio.missed or not ratio.seeds else ratio.mean

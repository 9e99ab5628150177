"""Does a gain last? The study `long`, with losses, bits and distances at four times of its training.

    python benchmarks/long.py run long methods=reference,auto
    python benchmarks/long.py run long-elsewhere methods=auto workloads=linear-shorter
    python benchmarks/long.py run long-cifar10   (made_data.py has its data)
    python benchmarks/long.py scores cifar10     bits and distances at checkpoints that are still there
    python benchmarks/long.py table              the record and the picture, from what is there

Nothing that is there already runs again.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from images_over_a_run import forecasts, over_the_run
from long_picture import picture
from made_data import CIFAR10
from paper_tables import keep_against_paper
from results import HERE, keep
from results import main as rewrite_results

from stepwell.cli.progress import StudyProgress
from stepwell.compare.curves import final, reached
from stepwell.compare.judgement import Judgement
from stepwell.compare.pool import cores
from stepwell.compare.results import Outcome
from stepwell.compare.run_study import Workspace, outcomes, run_study
from stepwell.compare.stats import Ratio, paired
from stepwell.compare.study import Study, load_study
from stepwell.compare.summary import judgements_of
from stepwell.runs.metrics import BITS, FRECHET, Metric, loss

RECORDS = HERE / "records" / "runs-long"
SCORES = HERE / "records" / "long"
QUARTERS = 4
MOST_SEEDS = 10
"""The studies have five; flow has five more (LOG.md)."""
GIVEN = {"long-cifar10": CIFAR10}
"""What a study needs beside its file."""
SHORTER, BASELINE = "linear-shorter", "reference"
SAME_OBJECTIVE = ("auto", "neyman", "auto+min-snr")
"""Forecasts are about these: they keep the objective of the method that they are compared with."""
SIMPLE = loss("simple").key


def study_of(name: str, words: Sequence[str] = ()) -> tuple[Study, Workspace]:
    """A study as the words change it, and where its runs are."""
    return load_study(name, [*GIVEN.get(name, ()), *words]), Workspace(
        Path("runs/results/long"), RECORDS, cores()
    )


def run(name: str, words: list[str]) -> None:
    """Train what is missing."""
    study, places = study_of(name, [word for word in words if not word.startswith("workers=")])
    workers = [int(word.partition("=")[2]) for word in words if word.startswith("workers=")]
    places.workers = (workers or [cores()])[0]
    progress = StudyProgress()
    run_study(study, places, progress.begin, progress.on_event)


def scores(workload: str) -> None:
    """Of every run directory of a workload that still has its checkpoints."""
    study = "long-cifar10" if workload == "cifar10" else "long"
    effort = load_study(study, GIVEN.get(study, ())).effort
    for folder in sorted(Path("runs/results/long", workload).glob("*/*/checkpoints")):
        keep_scores(workload, folder.parent, effort)


def keep_scores(workload: str, folder: Path, effort: dict[str, int]) -> None:
    """Bits and Fréchet distance of a run at its checkpoints, after each of its first three quarters."""
    import torch

    from stepwell.recipes.experiment import trained
    from stepwell.recipes.score import Effort, score
    from stepwell.train.checkpoint import steps

    torch.set_num_threads(1)
    place = SCORES / f"{workload}-{folder.parent.name}-{folder.name}.json"
    if place.exists():
        return
    found = {}
    for step in sorted(steps(folder / "checkpoints"))[: QUARTERS - 1]:
        values = score(trained(folder, step=step), Effort(**effort))
        found[step] = {metric.key: metric.read(values) for metric in (BITS, FRECHET)}
    SCORES.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(found) + "\n")


def score_at(outcome: Outcome, workload: str, quarter: int, metric: Metric) -> float:
    """Of a run after some quarters of its steps; NaN if it was not measured."""
    if quarter == QUARTERS:
        return metric.read(outcome.score)
    place = SCORES / f"{workload}-{outcome.path.parent.name}-{outcome.path.name}.json"
    found = json.loads(place.read_text()) if place.exists() else {}
    step = str(round(outcome.recipe.steps * quarter / QUARTERS))
    return float(found.get(step, {}).get(metric.key, "nan"))


def loss_at(outcome: Outcome, step: float, key: str = SIMPLE) -> float:
    """The held-out loss at the last evaluation that is not after a step."""
    return float([r[key] for r in outcome.evaluations if r["step"] <= step][-1])


def rows_of(judgement: Judgement, own: dict[int, Outcome], others: dict[int, Outcome]) -> list[list[str]]:
    """After each quarter: loss, images to the other's loss there and its forecast of them, bits, distance."""
    rows, key = [], judgement.metric.key
    pairs = [(own[seed], others[seed]) for seed in sorted(own.keys() & others.keys())]
    for quarter in range(1, QUARTERS + 1):
        ends, images, told = (list[float]() for _ in range(3))
        for one, other in pairs:
            step = other.recipe.steps * quarter / QUARTERS
            target = loss_at(other, step, key)
            ends.append(loss_at(one, step, key) / target)
            images.append(reached(one, key, target, "images") / (step * other.recipe.batch))
            until = [row for row in other.evaluations if row["step"] <= step]
            told.append(over_the_run(forecasts(until))[1])
        expected = _three(paired(told)) if judgement.method in SAME_OBJECTIVE else ""
        cells = [_three(paired(ends)), _three(paired(images)), expected]
        scored = [_scored(pairs, judgement.workload, quarter, metric) for metric in (BITS, FRECHET)]
        names = [judgement.workload, judgement.method, judgement.against, judgement.metric.title]
        rows.append([*names, f"{quarter}/{QUARTERS}", str(len(pairs)), *cells, *scored])
    return rows


def _scored(pairs: list[tuple[Outcome, Outcome]], workload: str, quarter: int, metric: Metric) -> str:
    """The ratio of a score, over the pairs of runs that have it."""
    scores = [[score_at(run, workload, quarter, metric) for run in pair] for pair in pairs]
    ratios = [own / other for own, other in scores if not math.isnan(own / other)]
    if not ratios:
        return "not measured"
    few = f" ({len(ratios)} seeds)" if len(ratios) < len(pairs) else ""
    return f"{_three(paired(ratios))}{few}"


def _three(ratio: Ratio) -> str:
    """With three decimals: late in training curves are close."""
    if ratio.missed or ratio.seeds < 2:
        return str(ratio)
    return f"{ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f}), at most {ratio.worst:.3f}"


def table() -> None:
    """What is there, as records: after each quarter, and beside the paper."""
    by, judgements = measured()
    rows = [
        row
        for one in judgements
        for row in rows_of(one, *(by[one.workload, of] for of in (one.method, one.against)))
    ]
    base = by["linear", BASELINE]
    rows += shorter_rows(by.get((SHORTER, "auto"), {}), base)
    last = [final(run, SIMPLE) / loss_at(run, 0.9 * run.recipe.steps) for run in base.values()]
    how = f"{HOW} Over its last tenth the reference on linear goes from 1 to {paired(last).mean:.4f}."
    made_in = next(iter(base.values())).environment
    keep("long", "long: does the gain last?", how, COLUMNS, rows, made_in, COMMAND)
    keep_against_paper("long", judgements, made_in, COMMAND, at_the_end=True)
    picture()
    rewrite_results()
    print("\n".join(" | ".join(row) for row in rows))


def measured() -> tuple[dict[tuple[str, str], dict[int, Outcome]], list[Judgement]]:
    """All runs that are there, by workload and method, and how they compare at the end."""
    by: dict[tuple[str, str], dict[int, Outcome]] = {}
    judgements = list[Judgement]()
    for name in ("long", "long-elsewhere", "long-cifar10"):
        study, places = study_of(name, [f"seeds={MOST_SEEDS}"])
        found = outcomes(study, places)
        judgements += judgements_of(found, study)
        for outcome in found:
            by.setdefault((outcome.path.parent.parent.name, outcome.method), {})[outcome.seed] = outcome
    return by, judgements


def shorter_rows(own: dict[int, Outcome], base: dict[int, Outcome]) -> list[list[str]]:
    """Fewer steps of `auto`, whose decay ends earlier, against all steps of the reference."""
    seeds = sorted(own.keys() & base.keys())
    if not seeds:
        return []
    ends = paired([final(own[seed], SIMPLE) / final(base[seed], SIMPLE) for seed in seeds])
    share = f"{own[seeds[0]].recipe.steps / base[seeds[0]].recipe.steps:.2f}"
    names = [SHORTER, "auto", BASELINE, loss("simple").title, f"end of {share} of the steps"]
    return [[*names, str(len(seeds)), _three(ends), share, "", "", ""]]


COLUMNS = [
    "workload",
    "method",
    "against",
    "judged by",
    "after",
    "seeds",
    "loss over the other's there",
    "images to the other's loss there",
    "by the other's own forecast",
    "bits over the other's there",
    "distance over the other's there",
]
COMMAND = "python benchmarks/long.py table"
HOW = (
    "`stepwell compare long`, `long-elsewhere` and `long-cifar10`: tiny U-Net, fashion16 or 10,000 images of "
    "CIFAR-10 at 16x16, batch 64, cosine decay of the learning rate to 0, every method at the rate 0.008: "
    "short runs of the reference alone (fashion16, linear, 1,000 steps, seeds 100 and 101, 0.002 to 0.032) "
    "ended at 0.0437 with 0.008, 0.0436 with 0.016, and diverged with 0.032. Each method is compared with "
    "another by the objective that it pursues, after each quarter of training: ratios of paired seeds, 95 % "
    "intervals and one-sided 95 % bounds; bits per dimension and Fréchet distances of 2,000 images. With a "
    "decay every curve falls at its end: images to the same loss inside one run say too little. What the "
    "other's own forecasts until then say of the best draws stands beside methods that keep its objective. "
    f"`{SHORTER}` trains `auto` with fewer steps and a decay of its own, and is compared with the end of the "
    "reference's full run."
)


def main() -> None:
    """One stage."""
    stage, *words = sys.argv[1:]
    if stage == "run":
        run(words[0], words[1:])
    elif stage == "scores":
        scores(*words)
    else:
        table()


if __name__ == "__main__":
    main()

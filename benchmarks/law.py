"""The law of images: what a pilot of the baseline predicts that other draws save, and what they did save.

    python benchmarks/law.py predict linear-4 flow-4     tune, train a pilot, write the prediction
    python benchmarks/law.py run linear-4 flow-4         the final seeds, once the prediction is committed
    python benchmarks/law.py same-rate lora-linear-4     the other methods at the rate of the reference
    python benchmarks/law.py table                       the record and the picture, from what is there

With rho the share of the gradient's variance that the best draws leave and x = critical batch / batch, images
needed over the reference's are (1 + rho x) / (1 + x). The pilot is one run of the reference alone, with a
seed that no other run has. LoRA's workloads are lora-linear-4, lora-flow-1 and so on, those on photographs
cifar10-linear-4 and so on (made_data.py has their data). Words such as methods=reference,neyman and seeds=8
change the study.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from images_over_a_run import BEST, OWN, forecasts, over_the_run
from law_picture import order_of, picture
from made_data import CIFAR10
from results import HERE, keep
from results import main as rewrite_results

from stepwell.cli.progress import StudyProgress
from stepwell.compare.judgement import Judgement
from stepwell.compare.pool import cores
from stepwell.compare.results import Outcome
from stepwell.compare.run_study import Workspace, outcomes, run_base, run_study, tune
from stepwell.compare.stats import Ratio, paired
from stepwell.compare.study import Study, load_study
from stepwell.compare.summary import judgements_of
from stepwell.compare.trials import plan_of, started
from stepwell.compare.tuning import tuned
from stepwell.runs.metrics import FRECHET

PREDICTIONS = HERE / "records" / "law" / "predictions.json"
PILOT_SEED = 200
QUARTERS, ROUNDS = 4, 8
"""The pilot is measured in the middle of each quarter of its training, by so many rounds of 20 strata."""
BASELINE = "reference"
SAME_RATE, TUNED_FIRST = "the reference's rate", "as tuned first"
"""What stands behind a method's name where its runs are not at the rate that tuning gives it today."""
HALVED = ("edm-4/reference",)
"""A final run diverged at the rate tuned first: predicted and run again at half of it (LOG.md)."""
SEEDS = dict.fromkeys(("linear-256", "flow-4", "flow-256"), 16)
"""Of the reference and `auto`: eight left the distance's bound above 1.05 (LOG.md)."""


def study_of(workload: str) -> tuple[Study, Workspace]:
    """The study with one workload of it: law, law-lora on a process, or law-cifar10."""
    kind, _, rest = workload.partition("-")
    if kind == "lora":
        process, batch = rest.split("-")
        study, words = "law-lora", [f"process={process}", f"workloads=lora-{batch}"]
        place = f"law-lora-{process}"
    elif kind == "cifar10":
        study, words, place = "law-cifar10", [f"workloads={rest}", *CIFAR10], "law-cifar10"
    else:
        study, words, place = "law", [f"workloads={workload}"], "law"
    given = [word for word in sys.argv[2:] if word.startswith(("methods=", "seeds="))]
    if workload in SEEDS:
        words.append(f"seeds={SEEDS[workload]}")
    workers = [int(word.partition("=")[2]) for word in sys.argv[2:] if word.startswith("workers=")]
    records = HERE / "records" / f"runs-{place}"
    workspace = Workspace(Path("runs/results") / place, records, (workers or [cores()])[0])
    loaded = load_study(study, [*words, *given])
    if BASELINE not in loaded.methods:
        raise SystemExit(f"{' '.join(given)}: add {BASELINE}, which all others are compared with.")
    return loaded, workspace


def pilot(settings: tuple[Study, str]) -> list[dict[str, float]]:
    """Train the baseline on the pilot's seed; signal and noise in each quarter, at the averaged weights."""
    import torch

    from stepwell.analyze.gain import gain
    from stepwell.analyze.gradient_rounds import Effort, gradient_rounds
    from stepwell.recipes.experiment import experiment
    from stepwell.recipes.training import accelerator_of, training_of
    from stepwell.train.step import Training, train_step

    def measured(training: Training, made: Any, batch: int, quarter: int) -> dict[str, float]:
        effort = Effort(strata=20, rounds=ROUNDS, images=8)
        with training.ema.in_place(), torch.enable_grad():
            # Random numbers of its own: otherwise the errors of the quarters would not average out.
            found = gain(gradient_rounds(training, made.data.train, effort, seed=1 + quarter), batch)
        return {
            "rho": found.ratio.value,
            "between": found.between_share.value,
            "critical_batch": found.critical_batch.value,
            "images": found.images_ratio.value,
        }

    torch.set_num_threads(1)
    study, workload = settings
    plan = plan_of(study, workload, study.baseline)
    rate = study.rates[f"{workload}/{study.baseline}"]
    plan = plan.with_settings(seed=PILOT_SEED, lr=rate)
    made = experiment(plan)
    training = training_of(made, accelerator_of(plan.recipe))
    steps, rows = plan.recipe.steps, []
    middles = [round((2 * k + 1) * steps / (2 * QUARTERS)) for k in range(QUARTERS)]
    for step in range(max(middles)):
        train_step(training, step)
        if step + 1 in middles:
            quarter = len(rows)
            rows.append({"step": step + 1, **measured(training, made, plan.recipe.batch, quarter)})
    return rows


def predict(workload: str) -> None:
    """Base, tuning and pilot, and what they predict; a method that is added later is only tuned."""
    known = _known()
    study, places = study_of(workload)
    name = next(iter(study.workloads))
    rates = known.get(workload, {"rates": {}})["rates"]
    untuned = [method for method in study.methods if f"{name}/{method}" not in rates]
    if not untuned:
        return
    progress = StudyProgress()
    run_base(study, places, progress.begin, progress.on_event)
    study = started(tune(study, places, progress.begin, progress.on_event), places.out)
    if workload in known:
        known, keys = _known(), [f"{name}/{method}" for method in untuned]
        known[workload]["rates"] |= {key: study.rates[key] for key in keys}
        known[workload]["edges"] += [key for key in study.edges if key in keys]
        _write(known)
        return
    halved = {key: study.rates[key] / 2 for key in HALVED if key.startswith(f"{workload}/")}
    study = replace(study, rates={**study.rates, **halved})
    with get_context("spawn").Pool(1) as pool:
        rows = pool.apply(pilot, ((study, name),))
    same, end = over_the_run([row["images"] for row in rows])
    told = {"rates": study.rates, "edges": list(study.edges), "same_loss": same, "to_end": end, "pilot": rows}
    _write({**_known(), workload: told})
    print(f"{workload}: predicted {same:.2f}, rates {study.rates}", flush=True)


def _known() -> dict[str, Any]:
    """The predictions that are there."""
    return json.loads(PREDICTIONS.read_text()) if PREDICTIONS.exists() else {}


def _write(known: dict[str, Any]) -> None:
    PREDICTIONS.parent.mkdir(parents=True, exist_ok=True)
    PREDICTIONS.write_text(json.dumps(known, indent=1) + "\n")


def run(workload: str) -> None:
    """The final seeds; refused while the prediction is not committed."""
    if workload not in _known():
        raise SystemExit(f"{workload} has no prediction: python benchmarks/law.py predict {workload} first.")
    changed = subprocess.run(
        ["git", "status", "--porcelain", str(PREDICTIONS)], capture_output=True, text=True, check=True
    )
    if changed.stdout:
        raise SystemExit(f"commit {PREDICTIONS} first: a prediction is one before the run.")
    study, places = study_of(workload)
    progress = StudyProgress()
    study = replace(study, rates=_known()[workload]["rates"])
    name = next(iter(study.workloads))
    if untuned := [method for method in study.methods if f"{name}/{method}" not in study.rates]:
        raise SystemExit(f"{workload} has no rate of {untuned[0]}: predict it with methods={untuned[0]} too.")
    run_study(study, places, progress.begin, progress.on_event)


def at_same_rate(workload: str) -> tuple[Study, Workspace]:
    """The other methods at the reference's rate: what a user gets who keeps the rate that they have."""
    study, places = study_of(workload)
    rates, name = _known()[workload]["rates"], next(iter(study.workloads))
    others = tuple(method for method in study.methods if method != study.baseline)
    same = {f"{name}/{method}": rates[f"{name}/{study.baseline}"] for method in others}
    out = places.out.with_name(f"{places.out.name}-same-rate")
    places = replace(places, out=out, records=HERE / "records" / f"runs-{out.name}")
    return replace(study, methods=others, rates=same), places


def run_at_same_rate(workload: str) -> None:
    """The final seeds of the other methods at the reference's rate."""
    study, places = at_same_rate(workload)
    progress = StudyProgress()
    run_study(study, places, progress.begin, progress.on_event)


def moved_to_the_references_rate(workload: str) -> list[str]:
    """Methods that were tuned to a rate of their own, and get the reference's from the same runs today.

    Since then a method keeps the rate of the one that it is judged against where that is as good (LOG.md).
    """
    study, places = study_of(workload)
    rates, name = _known()[workload]["rates"], next(iter(study.workloads))
    methods = tuple(method for method in study.methods if f"{name}/{method}" in rates)
    now = tuned(replace(study, methods=methods), places.out, places.records).rates
    theirs = rates[f"{name}/{study.baseline}"]
    return [m for m in methods if rates[f"{name}/{m}"] != theirs == now.get(f"{name}/{m}")]


@dataclass(frozen=True)
class Point:
    """One method on one workload: predicted and measured."""

    workload: str
    predicted: dict[str, Any]
    in_loop: Ratio
    """What `pacer.forecast()` said in the runs of the reference, over the run and its seeds."""
    in_its_own: Ratio
    """What it said of a method's own timesteps, in the runs of that method."""
    judgement: Judgement
    rate: str = ""
    """SAME_RATE or TUNED_FIRST."""

    @property
    def elsewhere(self) -> bool:
        """Whether it is of other images than those that the law was made on."""
        return self.workload.startswith("cifar10")

    @property
    def method(self) -> str:
        """Its name in tables."""
        return ", ".join(filter(None, (self.judgement.method, self.rate)))

    @property
    def row(self) -> list[str]:
        """Its row of the table."""
        told, found = self.predicted, self.judgement
        distance = found.scores[FRECHET.key]
        pilot = told["pilot"]
        return [
            self.workload,
            self.method,
            f"{sum(row['rho'] for row in pilot) / len(pilot):.2f}",
            " to ".join(f"{row['critical_batch']:.0f}" for row in (pilot[0], pilot[-1])),
            f"{told['same_loss']:.2f}",
            str(self.in_loop),
            str(self.in_its_own),
            str(found.images),
            f"{told['to_end']:.2f}",
            str(found.images_to_end),
            f"{found.end}, at most {found.end.worst:.3f}",
            f"{distance}, at most {distance.worst:.2f}",
            str(found.images.seeds),
        ]


COLUMNS = [
    "workload",
    "method",
    "rho",
    "critical batch, first to last quarter",
    "predicted before the runs",
    "forecast in the reference's runs",
    "forecast in its own runs",
    "images for same loss",
    "predicted to end",
    "images to reference's end",
    "final loss",
    "distance",
    "seeds",
]


def points() -> list[Point]:
    """What was predicted and has been measured."""
    found = []
    for workload, predicted in _known().items():
        study, places = study_of(workload)
        # The rates are those of the prediction, whatever is tuned later.
        study = started(replace(study, rates=predicted["rates"]), places.out)
        runs = outcomes(study, places)
        base = [run for run in runs if run.method == study.baseline]
        in_loop = said(base, BEST)
        moved, own = moved_to_the_references_rate(workload), list[Point]()
        kept = outcomes(*at_same_rate(workload))
        for group, label in ((runs, TUNED_FIRST), ([*base, *kept], SAME_RATE)):
            for judged in judgements_of(group, study):
                of_it = said([run for run in group if run.method == judged.method], OWN)
                usual = (judged.method in moved) == (label == SAME_RATE)
                own.append(Point(workload, predicted, in_loop, of_it, judged, "" if usual else label))
        found += sorted(own, key=lambda point: (point.judgement.method, bool(point.rate)))
    return sorted(found, key=lambda point: order_of(point.workload))


def said(runs: Sequence[Outcome], of: str) -> Ratio:
    """What `pacer.forecast()` said in runs, over each run and all seeds."""
    return paired([over_the_run(forecasts(run.evaluations, of))[0] for run in runs])


def agreement(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Spearman's rank correlation and the root mean square error of (predicted, measured)."""
    ranks = [_ranks(list(side)) for side in zip(*pairs, strict=True)]
    error = math.sqrt(sum((one - other) ** 2 for one, other in pairs) / len(pairs))
    return _correlation(*ranks) if len(pairs) > 2 else math.nan, error


def _ranks(values: list[float]) -> list[float]:
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def _correlation(one: list[float], other: list[float]) -> float:
    first, second = ([value - sum(side) / len(side) for value in side] for side in (one, other))
    product = sum(a * b for a, b in zip(first, second, strict=True))
    return product / math.sqrt(sum(a * a for a in first) * sum(b * b for b in second))


def table() -> None:
    """The record of all points, and the picture."""
    found = points()
    told_of = [point for point in found if not point.judgement.images.missed]
    known = [point for point in told_of if not point.rate]
    autos = [point for point in told_of if point.judgement.method == "auto" and not point.elsewhere]
    of_auto = [point for point in autos if not point.rate]
    # Of a workload's two rows the later one is that of the first tuning.
    first = {point.workload: point for point in autos if point.rate != SAME_RATE}
    every = [point for point in known if not point.elsewhere]
    elsewhere = [point for point in known if point.elsewhere]
    sentences = []
    for title, told in (
        ("Predicted before the runs", lambda point: point.predicted["same_loss"]),
        ("By pacer.forecast() in the reference's runs", lambda point: point.in_loop.mean),
        ("By pacer.forecast() in a method's own runs", lambda point: point.in_its_own.mean),
    ):
        (own, own_error), (whole, whole_error), (before, error_before), (_, error_elsewhere) = (
            agreement([(told(point), point.judgement.images.mean) for point in chosen])
            for chosen in (of_auto, every, first.values(), elsewhere)
        )
        sentences.append(
            f"{title}: rank correlation {own:.2f} and root mean square error {own_error:.3f} over the "
            f"{len(of_auto)} points of auto on fashion16, {whole:.2f} and {whole_error:.3f} over all "
            f"{len(every)} there; {before:.2f} and {error_before:.3f} over those of auto as it was tuned "
            f"first. On CIFAR-10 the error is {error_elsewhere:.3f} over {len(elsewhere)}."
        )
    made_in = outcomes_environment(found)
    rows = [point.row for point in found]
    title, how = (
        "The law of images: predicted and measured",
        " ".join([HOW, *sentences]),
    )
    keep("law", title, how, COLUMNS, rows, made_in, COMMAND)
    picture(known)
    rewrite_results()
    print("\n".join(" | ".join(row) for row in rows))
    print("\n".join(sentences))


COMMAND = "python benchmarks/law.py table"
HOW = (
    "`stepwell compare law`, `law-lora` and `law-cifar10` (tiny U-Net, fashion16 or, as a test on other "
    "images than those that it was made on, 10,000 photographs of CIFAR-10 at 16x16; eight paired seeds, "
    "learning rates tuned alike): images for the same held-out loss over the reference's, images to its "
    "end, the final loss and the Fréchet distance (500 images) with one-sided 95 % bounds. Predictions are "
    "of one run of the reference with another seed, committed before the final runs: (1 + rho x) / (1 + x),"
    " rho and the critical batch measured in the middle of each quarter of training, by the gradients in "
    "Adam's metric at the averaged weights. Pilots of all but lora-flow-16, flow-64, flow-256, edm-256 and "
    "CIFAR-10's were measured by four rounds with the same random numbers in every quarter and workload, so"
    " one unlucky draw was in all of them: on edm-4 they say rho 0.75 where eight times as many gradients "
    "say 0.85. Rho and critical batches in the table are the pilots'. linear-4 and edm-4 are exceptions: "
    "two and one of their reference's runs diverged at the rate that was tuned first, so the reference was "
    "run again at auto's rate, after a new prediction; auto's runs are older than that prediction (LOG.md)."
    " On edm-4 neyman has the rate of the two others, not one of its own. After all these runs tuning was "
    "changed: a method keeps the reference's rate where its tuning runs are as good there to 1 %. From the "
    f"same runs that gives three workloads the reference's rate; their other rows say '{TUNED_FIRST}'. On "
    "cifar10-linear-4 two of the reference's runs diverged at the 0.008 that was tuned first; tuning is "
    "more cautious since, and by it the reference was predicted and run again at 0.004 (LOG.md)."
)


def outcomes_environment(found: list[Point]) -> dict[str, Any]:
    """The machine and commit of the runs."""
    study, places = study_of(found[0].workload)
    study = replace(study, rates=found[0].predicted["rates"])
    return outcomes(started(study, places.out), places)[0].environment


def main() -> None:
    """One stage for some workloads."""
    stage, workloads = sys.argv[1], [word for word in sys.argv[2:] if "=" not in word]
    if stage == "table":
        table()
    stages = {"predict": predict, "run": run, "same-rate": run_at_same_rate}
    for workload in workloads:
        stages[stage](workload)


if __name__ == "__main__":
    main()

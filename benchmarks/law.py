"""The law of images: what a pilot of the baseline predicts that other draws save, and what they did save.

    python benchmarks/law.py predict linear-4 flow-4     tune, train a pilot, write the prediction
    python benchmarks/law.py run linear-4 flow-4         the final seeds, once the prediction is committed
    python benchmarks/law.py same-rate lora-linear-4     the other methods at the rate of the reference
    python benchmarks/law_table.py                       the record and the picture, from what is there

With rho the share of the gradient's variance that the best draws leave and x = critical batch / batch, images
needed over the reference's are (1 + rho x) / (1 + x). The pilot is one run of the reference alone, with a
seed that no other run has. LoRA's workloads are lora-linear-4, lora-flow-1 and so on, those on photographs
cifar10-linear-4 and so on (made_data.py has their data). Words such as methods=reference,neyman and seeds=8
change the study.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from images_over_a_run import over_the_run
from made_data import CIFAR10
from results import HERE

from stepwell.cli.progress import StudyProgress
from stepwell.compare.pool import cores
from stepwell.compare.run_study import Workspace, run_base, run_study, tune
from stepwell.compare.study import Study, load_study
from stepwell.compare.trials import plan_of, started
from stepwell.compare.tuning import tuned

PREDICTIONS = HERE / "records" / "law" / "predictions.json"
PILOT_SEED = 200
QUARTERS, ROUNDS = 4, 8
"""The pilot is measured in the middle of each quarter of its training, by so many rounds of 20 strata."""
BASELINE = "reference"
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
    known = known_predictions()
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
        known, keys = known_predictions(), [f"{name}/{method}" for method in untuned]
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
    _write({**known_predictions(), workload: told})
    print(f"{workload}: predicted {same:.2f}, rates {study.rates}", flush=True)


def known_predictions() -> dict[str, Any]:
    """The predictions that are there."""
    return json.loads(PREDICTIONS.read_text()) if PREDICTIONS.exists() else {}


def _write(known: dict[str, Any]) -> None:
    PREDICTIONS.parent.mkdir(parents=True, exist_ok=True)
    PREDICTIONS.write_text(json.dumps(known, indent=1) + "\n")


def run(workload: str) -> None:
    """The final seeds; refused while the prediction is not committed."""
    if workload not in known_predictions():
        raise SystemExit(f"{workload} has no prediction: python benchmarks/law.py predict {workload} first.")
    changed = subprocess.run(
        ["git", "status", "--porcelain", str(PREDICTIONS)], capture_output=True, text=True, check=True
    )
    if changed.stdout:
        raise SystemExit(f"commit {PREDICTIONS} first: a prediction is one before the run.")
    study, places = study_of(workload)
    progress = StudyProgress()
    study = replace(study, rates=known_predictions()[workload]["rates"])
    name = next(iter(study.workloads))
    if untuned := [method for method in study.methods if f"{name}/{method}" not in study.rates]:
        raise SystemExit(f"{workload} has no rate of {untuned[0]}: predict it with methods={untuned[0]} too.")
    run_study(study, places, progress.begin, progress.on_event)


def at_same_rate(workload: str) -> tuple[Study, Workspace]:
    """The other methods at the reference's rate: what a user gets who keeps the rate that they have."""
    study, places = study_of(workload)
    rates, name = known_predictions()[workload]["rates"], next(iter(study.workloads))
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
    rates, name = known_predictions()[workload]["rates"], next(iter(study.workloads))
    methods = tuple(method for method in study.methods if f"{name}/{method}" in rates)
    now = tuned(replace(study, methods=methods), places.out, places.records).rates
    theirs = rates[f"{name}/{study.baseline}"]
    return [m for m in methods if rates[f"{name}/{m}"] != theirs == now.get(f"{name}/{m}")]


def main() -> None:
    """One stage for some workloads."""
    stage, workloads = sys.argv[1], [word for word in sys.argv[2:] if "=" not in word]
    stages = {"predict": predict, "run": run, "same-rate": run_at_same_rate}
    for workload in workloads:
        stages[stage](workload)


if __name__ == "__main__":
    main()

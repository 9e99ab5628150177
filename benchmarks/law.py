"""The law of images: what a pilot of the baseline predicts that `auto` and `neyman` save, and what they did save.

    python benchmarks/law.py predict linear-4 flow-4     tune, train a pilot, write the prediction
    python benchmarks/law.py run linear-4 flow-4         the final seeds, once the prediction is committed
    python benchmarks/law.py table                       the record and the picture, from what is there

With rho the share of the gradient's variance that the best draws leave and x = critical batch / batch, images
needed over the reference's are (1 + rho x) / (1 + x). The pilot is one run of the reference alone, with a seed
that no other run has. LoRA's workloads are lora-linear-4, lora-flow-1 and so on.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from results import HERE

from stepwell.cli.progress import StudyProgress
from stepwell.compare.pool import cores
from stepwell.compare.run_study import Workspace, run_base, run_study, tune
from stepwell.compare.study import Study, load_study
from stepwell.compare.trials import plan_of, started

PREDICTIONS = HERE / "records" / "law" / "predictions.json"
PILOT_SEED = 200
QUARTERS = 4
"""The pilot is measured in the middle of each quarter of its training."""


def study_of(workload: str) -> tuple[Study, Workspace]:
    """The study with one workload of it: law, or law-lora on a process."""
    kind, _, rest = workload.partition("-")
    if kind == "lora":
        process, batch = rest.split("-")
        study, words = "law-lora", [f"process={process}", f"workloads=lora-{batch}"]
        place = f"law-lora-{process}"
    else:
        study, words, place = "law", [f"workloads={workload}"], "law"
    methods = [word for word in sys.argv[2:] if word.startswith("methods=")]
    workers = [int(word.partition("=")[2]) for word in sys.argv[2:] if word.startswith("workers=")]
    records = HERE / "records" / f"runs-{place}"
    workspace = Workspace(Path("runs/results") / place, records, (workers or [cores()])[0])
    return load_study(study, [*words, *methods]), workspace


def pilot(settings: tuple[Study, str]) -> list[dict[str, float]]:
    """Train the baseline on the pilot's seed; its signal and noise in each quarter, two kinds of weights."""
    import torch

    from stepwell.analyze.gain import gain
    from stepwell.analyze.gradient_rounds import Effort, gradient_rounds
    from stepwell.recipes.experiment import experiment
    from stepwell.recipes.training import accelerator_of, training_of
    from stepwell.train.step import Training, train_step

    def measured(training: Training, made: Any, batch: int) -> dict[str, float]:
        with torch.enable_grad():
            effort = Effort(strata=20, rounds=4, images=8)
            found = gain(gradient_rounds(training, made.data.train, effort), batch)
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
    middles = {round((2 * k + 1) * steps / (2 * QUARTERS)) for k in range(QUARTERS)}
    for step in range(max(middles)):
        train_step(training, step)
        if step + 1 in middles:
            last = measured(training, made, plan.recipe.batch)
            with training.ema.in_place():
                averaged = measured(training, made, plan.recipe.batch)
            rows.append({"step": step + 1, **averaged, **{f"last_{k}": v for k, v in last.items()}})
    return rows


def over_the_run(ratios: list[float]) -> tuple[float, float]:
    """(for the same loss, to the end) of a run whose quarters need these shares of the images."""
    points = 400
    total, logs = 0.0, []
    for place in range(points):
        share = (place + 0.5) / points
        total += ratios[min(int(share * len(ratios)), len(ratios) - 1)] / points
        # As compare/curves.py: after the first tenth, every loss by the images spent around it.
        if share > 0.1:
            logs.append(math.log(total / share))
    return math.exp(sum(logs) / len(logs)), total


def predict(workload: str) -> None:
    """Base, tuning and pilot, and what they predict."""
    known = json.loads(PREDICTIONS.read_text()) if PREDICTIONS.exists() else {}
    if workload in known:
        return
    study, places = study_of(workload)
    progress = StudyProgress()
    run_base(study, places, progress.begin, progress.on_event)
    study = started(tune(study, places, progress.begin, progress.on_event), places.out)
    name = next(iter(study.workloads))
    with get_context("spawn").Pool(1) as pool:
        rows = pool.apply(pilot, ((study, name),))
    same, end = over_the_run([row["images"] for row in rows])
    last_same, last_end = over_the_run([row["last_images"] for row in rows])
    known = json.loads(PREDICTIONS.read_text()) if PREDICTIONS.exists() else {}
    known[workload] = {
        "rates": study.rates,
        "edges": list(study.edges),
        "same_loss": same,
        "to_end": end,
        "same_loss_at_last_weights": last_same,
        "to_end_at_last_weights": last_end,
        "pilot": rows,
    }
    PREDICTIONS.parent.mkdir(parents=True, exist_ok=True)
    PREDICTIONS.write_text(json.dumps(known, indent=1) + "\n")
    print(
        f"{workload}: predicted {same:.2f} (at the last weights {last_same:.2f}), rates {study.rates}",
        flush=True,
    )


def run(workload: str) -> None:
    """The final seeds; refused while the prediction is not committed."""
    if workload not in json.loads(PREDICTIONS.read_text()):
        raise SystemExit(f"{workload} has no prediction: python benchmarks/law.py predict {workload} first.")
    changed = subprocess.run(
        ["git", "status", "--porcelain", str(PREDICTIONS)], capture_output=True, text=True, check=True
    )
    if changed.stdout:
        raise SystemExit(f"commit {PREDICTIONS} first: a prediction is one before the run.")
    study, places = study_of(workload)
    progress = StudyProgress()
    run_study(study, places, progress.begin, progress.on_event)


def main() -> None:
    """One stage for some workloads."""
    stage, workloads = sys.argv[1], [word for word in sys.argv[2:] if "=" not in word]
    for workload in workloads:
        {"predict": predict, "run": run}[stage](workload)


if __name__ == "__main__":
    main()

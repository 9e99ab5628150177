"""Does it pay? Methods against their baselines on fashion16, each at its own best learning rate, three seeds.

    python benchmarks/pays.py          runs what is missing, two runs at a time, and rewrites the record
    python benchmarks/pays.py table    only rewrites the record from what is there

Every finished run leaves a thin record in benchmarks/records/pays/: nothing is lost when time runs out.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import HERE, keep

from stepwell.compare.curves import Curve, smoothed, time_ratio
from stepwell.compare.score import paired

RECORDS = HERE / "records" / "pays"
BOUND = "objective/vlb"
SIMPLE = "objective/none"
MIN_SNR = "objective/min-snr"
PAIRS = {
    # method: (baseline, the objective it is judged by)
    "neyman": ("uniform", SIMPLE),
    "loss-root": ("uniform", SIMPLE),
    "neyman+min-snr": ("min-snr", MIN_SNR),
    "alignment": ("uniform", BOUND),
    "alignment:target=simple": ("uniform", BOUND),
    "beta-policy:credit=alignment": ("uniform", BOUND),
    "loss-ema": ("uniform", SIMPLE),
    "beta-policy": ("uniform", BOUND),
    "beta-policy:as_published=true": ("uniform", BOUND),
}
METHODS = ("uniform", "min-snr", *PAIRS)
RATES = ("1e-3", "2e-3", "4e-3")
TUNING_SEED = 100
SEEDS = (0, 1, 2)
STEPS = 1600
COMMON = (f"evaluate_every={STEPS // 20}", "samples=0", "checkpoint_every=100000", "ema=0.99")


@dataclass(frozen=True)
class Trial:
    """One run: `stage` is tune (quarter length) or final."""

    stage: str
    method: str
    rate: str
    seed: int

    @property
    def path(self) -> Path:
        """Where its thin record goes."""
        name = "".join(letter if letter.isalnum() else "-" for letter in self.method)
        return RECORDS / f"{self.stage}-{name}-{self.rate}-{self.seed}.json"

    def curve(self) -> Curve:
        """The evaluations of a finished run."""
        found = json.loads(self.path.read_text())
        return Curve(self.path, self.method, self.seed, tuple(found["evaluations"]))

    def score(self) -> dict[str, Any]:
        """Its end: distances and bits."""
        found: dict[str, Any] = json.loads(self.path.read_text())["score"]
        return found


def run(trial: Trial) -> str:
    """Train, score, keep."""
    import torch

    from stepwell.recipes.build import trained
    from stepwell.recipes.load import load
    from stepwell.recipes.run import run_recipe
    from stepwell.recipes.score import Effort, score
    from stepwell.runs.environment import environment

    torch.set_num_threads(1)
    steps = STEPS if trial.stage == "final" else STEPS // 4
    with tempfile.TemporaryDirectory() as folder:
        words = [f"method={trial.method}", f"lr={trial.rate}", f"seed={trial.seed}", f"steps={steps}"]
        run_recipe(load("fashion16", [*words, *COMMON, f"out={folder}/run"]), say=lambda text: None)
        lines = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
        kept = ("step", "images", "seconds", "density", SIMPLE, MIN_SNR, BOUND)
        evaluations = [{key: line[key] for key in kept} for line in lines if line["kind"] == "evaluation"]
        effort = Effort(generated=1000, steps=25, bits_images=64, bits_timesteps=50)
        ends = score(trained(Path(folder) / "run"), effort) if trial.stage == "final" else {}
        probing = [line["sampler_seconds"] for line in lines if "sampler_seconds" in line]
    RECORDS.mkdir(parents=True, exist_ok=True)
    content = {
        "trial": vars(trial),
        "evaluations": evaluations,
        "score": ends,
        "sampler_seconds": probing[-1],
        "environment": environment(),
    }
    trial.path.write_text(json.dumps(content) + "\n")
    return f"{trial.stage} {trial.method} {trial.rate} seed {trial.seed}: {evaluations[-1][SIMPLE]:.4f}"


def objective_of(method: str) -> str:
    """What a method's learning rate is chosen by: the objective it is judged by."""
    if method in PAIRS:
        return PAIRS[method][1]
    return MIN_SNR if method == "min-snr" else SIMPLE


def best_rate(method: str) -> str | None:
    """The learning rate of the lowest smoothed end among the short runs; None until all are there."""
    trials = [Trial("tune", method, rate, TUNING_SEED) for rate in RATES]
    if not all(trial.path.exists() for trial in trials):
        return None
    ends = {trial.rate: smoothed(trial.curve().values(objective_of(method)))[-1] for trial in trials}
    return min(ends, key=ends.__getitem__)


def run_missing(trials: list[Trial]) -> None:
    """Two at a time, one thread each."""
    missing = [trial for trial in trials if not trial.path.exists()]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stepwell.recipes.score", "stepwell.recipes.run"])
    with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(run, trial) for trial in missing]):
            print(done.exception() or done.result(), flush=True)


def finals(method: str) -> list[Trial]:
    """The finished long runs of a method."""
    rate = best_rate(method)
    trials = [Trial("final", method, rate, seed) for seed in SEEDS] if rate else []
    return [trial for trial in trials if trial.path.exists()]


def table() -> None:
    """The record, from the runs that are there."""
    rows = []
    for method, (baseline, metric) in PAIRS.items():
        theirs = {trial.seed: trial for trial in finals(baseline)}
        shared = [trial for trial in finals(method) if trial.seed in theirs]
        if len(shared) < 2:
            continue
        cells = []
        for objective in (SIMPLE, MIN_SNR, BOUND):
            ratios = [time_ratio(t.curve(), theirs[t.seed].curve(), objective, "images") for t in shared]
            mark = " *" if objective == metric else ""
            cells.append(f"{paired(ratios)}{mark}")
        distance = paired([_distance(t) / _distance(theirs[t.seed]) for t in shared])
        rows.append(
            [
                f"{method} against {baseline}",
                f"{best_rate(method)} / {best_rate(baseline)}",
                str(len(shared)),
                *cells,
                f"{distance}, at most {distance.worst:.2f}",
            ]
        )
    keep(
        "pays",
        "Learned samplers on fashion16: images to the baseline's end",
        f"benchmarks/pays.py: tiny U-Net, linear schedule, batch 64, {STEPS} steps, evaluated 20 times, learning "
        f"rate chosen among {', '.join(RATES)} for each method alike (seed {TUNING_SEED}, quarter length, by the "
        "objective it is judged by, marked *), seeds "
        f"{', '.join(map(str, SEEDS))}. Images until the held-out objective (mean of 3 evaluations) reaches the "
        "baseline's end, over the baseline's own; geometric mean over seeds, 95 % paired t interval on "
        "logarithms. Distance: Fréchet distance on fashion16 features (1,000 images, DDIM 25), as a ratio, "
        "with its one-sided 95 % bound.",
        ["method", "learning rates", "seeds", "simple", "min-snr", "bound", "distance"],
        rows,
    )
    for row in rows:
        print(" | ".join(row))


def _distance(trial: Trial) -> float:
    return float(trial.score()["fashion16_features"]["frechet_distance"])


def main() -> None:
    """Tune, train, tell."""
    if "table" not in sys.argv[1:]:
        chosen = [m for m in METHODS if not sys.argv[1:] or m in sys.argv[1:]]
        run_missing([Trial("tune", m, rate, TUNING_SEED) for m in chosen for rate in RATES])
        rates = {method: best_rate(method) for method in chosen}
        run_missing([Trial("final", m, r, seed) for seed in SEEDS for m, r in rates.items() if r])
    table()


if __name__ == "__main__":
    main()

"""Does it pay? Methods against their baselines on fashion16, each at its own best learning rate, three seeds.

    python benchmarks/pays.py                    runs what is missing, two at a time, and rewrites the records
    python benchmarks/pays.py neyman uniform     only these methods
    python benchmarks/pays.py mnist batch-16     the other stages, for neyman and uniform
    python benchmarks/pays.py table              only rewrites the records from what is there

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

from stepwell.compare.curves import final, same_loss_ratio, to_end_ratio
from stepwell.compare.results import Outcome
from stepwell.compare.stats import Ratio, paired
from stepwell.recipes.schema import Recipe
from stepwell.runs.metrics import loss, named_now

RECORDS = HERE / "records" / "pays"
BOUND, SIMPLE, MIN_SNR = (loss(name).key for name in ("bound", "simple", "min-snr"))
PAIRS = {
    # method: (baseline, the objective it is judged by)
    "neyman": ("uniform", SIMPLE),
    "loss-root": ("uniform", SIMPLE),
    "neyman+min-snr": ("min-snr", MIN_SNR),
    "alignment:every_steps=16": ("uniform", BOUND),
    "alignment:target=simple": ("uniform", BOUND),
    "beta-policy:credit=alignment": ("uniform", BOUND),
    "loss-ema": ("uniform", SIMPLE),
    "beta-policy": ("uniform", BOUND),
    "beta-policy:as_published=true": ("uniform", BOUND),
}
METHODS = ("uniform", "min-snr", *PAIRS)
RATES = ("2e-3", "4e-3", "8e-3")
TUNING_SEED = 100
SEEDS = (0, 1, 2)
STEPS, TUNING_STEPS = 1000, 400
COMMON = ("samples=0", "evaluate_images=128", "checkpoint_every=100000", "ema=0.99", "warm_up_steps=100")
STAGES: dict[str, tuple[int, tuple[str, ...]]] = {
    # stage: steps, and what differs from fashion16 at batch 64
    "tune": (TUNING_STEPS, ()),
    "final": (STEPS, ()),
    "mnist": (STEPS // 2, ("data=runs/mnist16.npz", "flips=false")),
    "batch-16": (STEPS, ("batch=16", "evaluate_images=64")),
    "batch-256": (STEPS // 4, ("batch=256", "evaluate_images=64")),
}
ELSEWHERE = ("uniform", "neyman")
"""What is also run in the other stages, at the learning rates chosen on fashion16."""


@dataclass(frozen=True)
class Trial:
    """One run of a stage."""

    stage: str
    method: str
    rate: str
    seed: int

    @property
    def path(self) -> Path:
        """Where its thin record goes."""
        name = "".join(letter if letter.isalnum() else "-" for letter in self.method)
        return RECORDS / f"{self.stage}-{name}-{self.rate}-{self.seed}.json"

    def curve(self) -> Outcome:
        """The evaluations of a finished run."""
        found = json.loads(self.path.read_text())
        recipe = Recipe(method=self.method, seed=self.seed, steps=STAGES[self.stage][0])
        return Outcome(self.path, recipe, tuple(map(named_now, found["evaluations"])))

    def score(self) -> dict[str, Any]:
        """Its end: distances and bits."""
        found: dict[str, Any] = json.loads(self.path.read_text())["score"]
        return found


def run(trial: Trial) -> str:
    """Train, score, keep."""
    import torch

    from stepwell.recipes.experiment import trained
    from stepwell.recipes.load import load
    from stepwell.recipes.run import run_plan
    from stepwell.recipes.score import Effort, score
    from stepwell.runs.directory import environment
    from stepwell.runs.portable import portable_environment

    torch.set_num_threads(1)
    steps, more = STAGES[trial.stage]
    with tempfile.TemporaryDirectory() as folder:
        words = [f"method={trial.method}", f"lr={trial.rate}", f"seed={trial.seed}", f"steps={steps}", *more]
        words += [f"evaluate_every={steps // 20}"]
        run_plan(load("fashion16", [*COMMON, *words, f"out={folder}/run"]), say=lambda text: None)
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
        "environment": portable_environment(environment()),
    }
    trial.path.write_text(json.dumps(content) + "\n")
    return f"{trial.stage} {trial.method} {trial.rate} seed {trial.seed}: {evaluations[-1][SIMPLE]:.4f}"


def objective_of(method: str) -> str:
    """What a method's learning rate is chosen by: the objective it is judged by."""
    if method in PAIRS:
        return PAIRS[method][1]
    return MIN_SNR if method == "min-snr" else SIMPLE


def best_rate(method: str) -> str | None:
    """The learning rate of the lowest end among the short runs; None until all are there."""
    trials = [Trial("tune", method, rate, TUNING_SEED) for rate in RATES]
    if not all(trial.path.exists() for trial in trials):
        return None
    ends = {trial.rate: final(trial.curve(), objective_of(method)) for trial in trials}
    return min(ends, key=ends.__getitem__)


def run_missing(trials: list[Trial]) -> None:
    """Two at a time, one thread each."""
    missing = [trial for trial in trials if not trial.path.exists()]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stepwell.recipes.score", "stepwell.recipes.run"])
    with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(run, trial) for trial in missing]):
            print(done.exception() or done.result(), flush=True)


def finished(method: str, stage: str = "final") -> list[Trial]:
    """The finished runs of a method in a stage."""
    rate = best_rate(method)
    trials = [Trial(stage, method, rate, seed) for seed in SEEDS] if rate else []
    return [trial for trial in trials if trial.path.exists()]


def pairs(method: str, baseline: str, stage: str) -> list[tuple[Outcome, Outcome]]:
    """The runs of a method and of its baseline on shared seeds."""
    theirs = {trial.seed: trial.curve() for trial in finished(baseline, stage)}
    mine = [trial.curve() for trial in finished(method, stage) if trial.seed in theirs]
    return [(curve, theirs[curve.seed]) for curve in mine]


def images(method: str, baseline: str, objective: str, stage: str) -> tuple[Ratio, Ratio]:
    """Images for the same loss, and images to the baseline's end, over the baseline's."""
    both = pairs(method, baseline, stage)
    return (
        paired([same_loss_ratio(*pair, objective) for pair in both], "curves do not say"),
        paired([to_end_ratio(*pair, objective) for pair in both]),
    )


def table() -> None:
    """The records, from the runs that are there."""
    rows = []
    for method, (baseline, metric) in PAIRS.items():
        theirs = {trial.seed: trial for trial in finished(baseline)}
        shared = [trial for trial in finished(method) if trial.seed in theirs]
        if len(shared) < 2:
            continue
        cells = []
        for objective in (SIMPLE, MIN_SNR, BOUND):
            mark = " *" if objective == metric else ""
            cells.append(f"{images(method, baseline, objective, 'final')[0]}{mark}")
        cells.append(str(images(method, baseline, metric, "final")[1]))
        distance = paired([_distance(t) / _distance(theirs[t.seed]) for t in shared])
        rates = f"{best_rate(method)} / {best_rate(baseline)}"
        ends = f"{distance}, at most {distance.worst:.2f}"
        rows.append([f"{method} against {baseline}", rates, str(len(shared)), *cells, ends])
    columns = ["method", "learning rates", "seeds", "simple", "min-snr", "bound", "* to the baseline's end"]
    columns += ["distance"]
    made_in = json.loads(finished("uniform")[0].path.read_text())["environment"]
    keep("pays", "Learned samplers on fashion16: images for the same loss", HOW, columns, rows, made_in, PAYS)
    others = []
    for stage, (steps, more) in STAGES.items():
        if stage in ("tune", "final") or len(finished("neyman", stage)) < 2:
            continue
        seeds = str(len(finished("neyman", stage)))
        cells = [str(images("neyman", "uniform", o, stage)[0]) for o in (SIMPLE, MIN_SNR, BOUND)]
        cells.append(str(images("neyman", "uniform", SIMPLE, stage)[1]))
        others.append([stage, f"{steps} steps, {' '.join(more)}", seeds, *cells])
    if others:
        columns = ["where", "what differs", "seeds", "simple", "min-snr", "bound", "simple, to uniform's end"]
        keep(
            "pays-elsewhere",
            "neyman against uniform elsewhere: images for the same loss",
            OTHERS,
            columns,
            others,
            made_in,
            f"{PAYS} {' '.join(row[0] for row in others)}",
        )
    for row in rows + others:
        print(" | ".join(row))


PAYS = "python benchmarks/pays.py"
HOW = (
    f"benchmarks/pays.py: tiny U-Net, linear schedule, batch 64, {STEPS} steps, evaluated 20 times, learning "
    f"rate chosen among {', '.join(RATES)} for each method alike (seed {TUNING_SEED}, {TUNING_STEPS} steps, "
    f"by the objective it is judged by, marked *), seeds {', '.join(map(str, SEEDS))}. Images for "
    "the same held-out objective over the baseline's, and images to the baseline's end; "
    "geometric mean over seeds, 95 % paired t interval on logarithms. Distance: Fréchet distance on "
    "fashion16 features (1,000 images, DDIM 25), as a ratio, with its one-sided 95 % bound."
)
OTHERS = (
    "benchmarks/pays.py: settings and learning rates as chosen on fashion16 at batch 64, nothing tuned here. "
    "MNIST reduced to 16x16 is data that no choice was made on."
)


def _distance(trial: Trial) -> float:
    return float(trial.score()["fashion16_features"]["frechet_distance"])


def main() -> None:
    """Tune, train, tell."""
    words = sys.argv[1:]
    if "table" not in words:
        stages = [word for word in words if word in STAGES]
        chosen = [word for word in words if word in METHODS] or list(ELSEWHERE if stages else METHODS)
        run_missing([Trial("tune", m, rate, TUNING_SEED) for m in chosen for rate in RATES])
        rates = {method: best_rate(method) for method in chosen}
        for stage in stages or ["final"]:
            run_missing([Trial(stage, m, r, seed) for seed in SEEDS for m, r in rates.items() if r])
    table()


if __name__ == "__main__":
    main()

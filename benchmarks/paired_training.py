"""Does noise=paired train better? Pairs of runs that differ in nothing else: the same images and times.

python benchmarks/paired_training.py
"""

from __future__ import annotations

import math

import torch
from accelerate import Accelerator
from results import keep

from stepwell.compare.stats import paired
from stepwell.recipes.experiment import experiment
from stepwell.recipes.load import load
from stepwell.recipes.training import evaluation_of, training_of
from stepwell.runs.metrics import loss
from stepwell.train.step import train_step

PROCESSES, SEEDS, STEPS, BATCH = ("linear", "flow"), range(5), 600, 16
SETTINGS = [
    "method=reference",
    f"batch={BATCH}",
    f"steps={STEPS}",
    "lr=4e-3",
    "warm_up_steps=100",
    "ema=0.99",
    "evaluate_images=64",
]


def final_loss(process: str, seed: int, noise: str) -> float:
    """The held-out simple loss of the averaged weights at the end."""
    words = [*SETTINGS, f"process={process}", f"seed={seed}", f"noise={noise}"]
    made = experiment(load("fashion16", words))
    training = training_of(made, Accelerator(cpu=True))
    for step in range(STEPS):
        train_step(training, step)
    evaluate = evaluation_of(made, training.accelerator.device)
    with training.ema.in_place():
        return float(evaluate(training.network)[loss("simple").key])


def main() -> None:
    """Train, compare, keep."""
    torch.set_num_threads(1)
    rows = list[list[str]]()
    for process in PROCESSES:
        ends = [[final_loss(process, seed, noise) for noise in ("independent", "paired")] for seed in SEEDS]
        ratios = [after / before for before, after in ends]
        found = paired(ratios)
        mean = math.exp(sum(math.log(before) for before, _ in ends) / len(ends))
        shown = f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})"
        rows.append([process, f"{mean:.5f}", shown, " ".join(f"{ratio:.3f}" for ratio in ratios)])
        print(rows[-1], flush=True)
    keep(
        "paired-training",
        "noise=paired against independent noise: the loss at the end",
        f"benchmarks/paired_training.py: fashion16, `tiny`, {STEPS} steps at batch {BATCH}, learning rate "
        f"4e-3, draws from the reference, {len(SEEDS)} seeds; held-out simple loss of the averaged weights, "
        "geometric mean of the ratios by seed with Student's interval of 95 %.",
        ["process", "loss, independent", "paired over independent", "each seed"],
        rows,
    )


if __name__ == "__main__":
    main()

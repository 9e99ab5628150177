"""`make demo`: train fashion16 with three methods for equal time, twice, and make one page of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from stepwell.compare.curves import Curve, read, time_ratio
from stepwell.compare.page import draw
from stepwell.compare.trials import read_score, run_trials
from stepwell.recipes.load import load

OUT = Path("runs/demo")
METHODS = ("uniform", "neyman", "neyman+min-snr")
"""The baseline, the sampler that keeps its objective, and the same for the usual weighting (RESULTS.md)."""
SEEDS = (0, 1)
"""Others than those that chose the methods."""
SECONDS = 60
SETTINGS = (
    f"seconds={SECONDS}",
    "steps=100000",
    "warm_up_steps=30",
    "ema=0.99",
    "evaluate_every=50",
    "evaluate_images=64",
    "checkpoint_every=100000",
)
EFFORT = {"generated": 500, "steps": 25, "bits_images": 128, "bits_timesteps": 50}
METRIC = "objective/none"


def main() -> None:
    """Train, score, draw; end with where to look and what to try next."""
    started = time.monotonic()
    recipes = [
        load("fashion16", [*SETTINGS, f"method={method}", f"seed={seed}", f"out={OUT / f'{method}-{seed}'}"])
        for seed in SEEDS
        for method in METHODS
    ]
    minutes = len(recipes) * (SECONDS + 30) / 2 / 60
    names = ", ".join(METHODS)
    print(f"Training {names} on fashion16 for {SECONDS} s each, seeds {SEEDS}: about {minutes:.0f} min")
    for recipe, problem in run_trials(recipes, EFFORT):
        print(f"  {recipe.out}: {problem or 'done'}  ({time.monotonic() - started:.0f} s)", flush=True)
    curves = [read(Path(recipe.out)) for recipe in recipes]
    rows = table(curves)
    page = OUT / "page.png"
    title = f"fashion16, linear schedule, {SECONDS} training seconds on one core, {len(SEEDS)} seeds"
    draw(curves, rows, METRIC, page, title)
    print()
    for row in rows:
        print("  " + "".join(f"{cell:>26}" for cell in row))
    print("\nA / parts the seeds. Times: to uniform's final loss, over uniform's own; inf: not reached.")
    print(f"Two seeds are a look, not a verdict. The page: {page}")
    print("Try next:")
    print("  .venv/bin/stepwell ls                                  every sampler, weighting and process")
    print("  .venv/bin/stepwell train fashion16 method=logit-normal+min-snr steps=4000")
    print("  .venv/bin/stepwell train images data=YOUR/FOLDER size=32 --dry-run")
    print("  .venv/bin/stepwell generate runs/demo/uniform-0 --out images.png")
    print("  .venv/bin/stepwell analyze gain runs/demo/uniform-0    what drawing elsewhere would win")


def table(curves: list[Curve]) -> list[list[str]]:
    """One row a method: means over seeds, and the seeds themselves."""
    base = {curve.seed: curve for curve in curves if curve.method == "uniform"}
    columns: dict[str, Callable[[Curve], float]] = {
        "steps": lambda c: c.values("step")[-1],
        "simple loss": lambda c: c.values(METRIC)[-1],
        "min-snr loss": lambda c: c.values("objective/min-snr")[-1],
        "bits per dimension": lambda c: read_score(c.path)["bits_per_dimension"]["total"],
        "Fréchet (not FID)": lambda c: read_score(c.path)["fashion16_features"]["frechet_distance"],
        "time to its simple": lambda c: time_ratio(c, base[c.seed], METRIC),
        "time to its min-snr": lambda c: time_ratio(c, base[c.seed], "objective/min-snr"),
    }
    rows = [["method", *columns]]
    for method in METHODS:
        mine = [curve for curve in curves if curve.method == method]
        rows.append([method, *(_cell([value(curve) for curve in mine]) for value in columns.values())])
    return rows


def _cell(values: list[float]) -> str:
    return " / ".join(f"{value:.0f}" if 100 <= value < float("inf") else f"{value:.4g}" for value in values)


if __name__ == "__main__":
    main()

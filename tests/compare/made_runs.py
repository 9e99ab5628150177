"""Run directories with curves of our own making, written in the format that training writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepwell.compare.results import Outcome
from stepwell.recipes.schema import Recipe

SECONDS_PER_STEP = 0.5
BATCH = 10


def evaluations(values: Sequence[float], every: int = 10, slow: float = 1.0) -> list[dict[str, Any]]:
    """Evaluation records of a simple loss; the other objectives are multiples of it."""
    return [
        {
            "kind": "evaluation",
            "step": index * every,
            "images": index * every * BATCH,
            "seconds": index * every * SECONDS_PER_STEP * slow,
            "objective/simple": value,
            "objective/min-snr": value / 2,
            "objective/bound": value * 3,
            "bands": [value, value / 2],
            "density": [1.0, 0.5, 1.5],
            "effective_weight": [1.0, 1.0, 1.0],
        }
        for index, value in enumerate(values)
    ]


def outcome(values: Sequence[float], method: str = "uniform", seed: int = 0, **more: Any) -> Outcome:
    """An outcome that was never on disk."""
    records = evaluations(values, slow=more.pop("slow", 1.0))
    recipe = Recipe(method=method, seed=seed, **{"steps": records[-1]["step"], **more})
    return Outcome(Path(f"{method}-{seed}"), recipe, tuple(records))


def write_run(
    path: Path, values: Sequence[float], method: str = "uniform", seed: int = 0, **more: Any
) -> Path:
    """A run directory."""
    told = {f"forecast/{name}": value for name, value in more.pop("forecast", {}).items()}
    score = more.pop("score", {"fashion16_features": {"frechet_distance": 10 * values[-1]}})
    run = outcome(values, method, seed, **more)
    path.mkdir(parents=True)
    (path / "recipe.json").write_text(json.dumps(run.recipe.values()))
    (path / "score.json").write_text(json.dumps(score))
    (path / "environment.json").write_text(json.dumps({"command": ["stepwell", "train", method], "cores": 2}))
    evaluated = [*run.evaluations[:-1], {**run.evaluations[-1], **told}]
    lines = [json.dumps({"kind": "train", "step": 1, "loss": 1.0}), *map(json.dumps, evaluated)]
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return path


def study_of(folder: Path, curves: dict[str, Callable[[int], Sequence[float]]], seeds: int = 3) -> Path:
    """Run directories of several methods and seeds; curves are functions of the seed."""
    for method, curve in curves.items():
        for seed in range(seeds):
            write_run(folder / method / str(seed), curve(seed), method, seed)
    return folder

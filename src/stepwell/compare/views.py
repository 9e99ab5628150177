"""What pages draw of a run and of a method, thinned to what a screen can show."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

from stepwell.compare.curves import smoothed
from stepwell.compare.outcome import Outcome
from stepwell.compare.summary import Heat, MethodView, RunView, Sheet

MOST_POINTS, MOST_HEAT_ROWS = 120, 24


def method_view(
    method: str, runs: Sequence[Outcome], colour: int, against: str | None, seconds: float
) -> MethodView:
    """A method over its seeds, with images that it made nearest to a training time."""
    first = runs[0]
    last = [run.evaluations[-1].get("bands") or [] for run in runs]
    bands = [sum(values) / len(values) for values in zip(*last, strict=False) if None not in values]
    looks = [record for record in first.evaluations if record.get("density")]
    kept = thinned(looks, MOST_HEAT_ROWS)
    return MethodView(
        method,
        colour,
        against,
        tuple(run.seed for run in runs),
        Heat(tuple(r["images"] for r in kept), tuple(_short(r["density"]) for r in kept)) if kept else None,
        _short(looks[-1].get("effective_weight", ())) if looks else (),
        _short(bands),
        _sheet(first, seconds),
    )


def _sheet(run: Outcome, seconds: float) -> Sheet | None:
    """The images that the run made nearest to a training time, so that methods are shown at equal time."""
    times = {int(record["step"]): float(record["seconds"]) for record in run.evaluations}
    found = []
    for path in run.path.glob("samples/step-*.png"):
        number = path.stem.removeprefix("step-")
        if number.isdigit() and int(number) in times:
            found.append((abs(times[int(number)] - seconds), int(number), path))
    if not found:
        return None
    _, step, path = min(found)
    picture = base64.b64encode(path.read_bytes()).decode("ascii")
    caption = f"{run.method}, seed {run.seed}: step {step}, {times[step]:.0f} training seconds"
    return Sheet(f"data:image/png;base64,{picture}", caption)


def run_view(run: Outcome, metrics: Sequence[str]) -> RunView:
    """A run's curves."""
    values = {metric: smoothed(run.values(metric)) for metric in metrics if metric in run.evaluations[-1]}
    places = thinned(range(len(run.evaluations)), MOST_POINTS)
    at = [run.evaluations[place] for place in places]
    return RunView(
        run.method,
        run.seed,
        str(run.path),
        run.finished,
        tuple(int(record["step"]) for record in at),
        tuple(float(record["images"]) for record in at),
        tuple(round(float(record["seconds"]), 2) for record in at),
        {metric: tuple(_digits(found[place]) for place in places) for metric, found in values.items()},
        run.warnings,
    )


def thinned(values: Sequence[Any], most: int) -> list[Any]:
    """At most so many, evenly chosen, the first and the last among them."""
    count = len(values)
    if count <= most:
        return list(values)
    return [values[round(index * (count - 1) / (most - 1))] for index in range(most)]


def _short(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)


def _digits(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def shared_settings(recipes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The settings that all have in common."""
    first = recipes[0]
    return {
        key: value
        for key, value in first.items()
        if key != "out" and all(recipe.get(key) == value for recipe in recipes)
    }

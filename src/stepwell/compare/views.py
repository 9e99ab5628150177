"""What a comparison found, as plain values: the command line prints them, pages draw them."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stepwell.compare.results import LeftOut, Outcome
from stepwell.compare.stats import smoothed


@dataclass(frozen=True)
class Table:
    """Text in rows; the first cell of a row names it."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Metric:
    """Something that runs are scored by; lower is better."""

    key: str
    """As records have it: objective/none, ..."""
    name: str
    """In words."""


@dataclass(frozen=True)
class Sheet:
    """Generated images of one run."""

    uri: str
    """A data: address, so that a page needs no other file."""
    caption: str


@dataclass(frozen=True)
class Heat:
    """The density of the draws over training: rows[i][j] at images[i], in equal bin j of unit time."""

    images: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class MethodView:
    """One method on one workload, over its seeds."""

    name: str
    colour: int
    """Its place among all methods of the summary: the same everywhere."""
    against: str | None
    """The method that it is judged against; None for the baseline."""
    seeds: tuple[int, ...]
    density: Heat | None
    """Of its first seed."""
    effective_weight: tuple[float, ...]
    """At the end of its first seed: what the losses weigh in equal bins of unit time, mean 1."""
    bands: tuple[float, ...]
    """At the end, mean over seeds: the plain held-out loss in equal bands of unit time."""
    sheet: Sheet | None


@dataclass(frozen=True)
class RunView:
    """The learning curve of one run, thinned to what a screen can show."""

    method: str
    seed: int
    path: str
    finished: bool
    steps: tuple[int, ...]
    images: tuple[float, ...]
    seconds: tuple[float, ...]
    """Training seconds, evaluation excluded."""
    values: dict[str, tuple[float | None, ...]]
    """By metric, smoothed as the scores are."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Runs that differ in method, seed and learning rate only."""

    name: str
    baseline: str
    table: Table
    """Every method against what it is judged by, with intervals."""
    methods: tuple[MethodView, ...]
    runs: tuple[RunView, ...]
    settings: dict[str, Any]
    """What all its runs have in common."""


@dataclass(frozen=True)
class Profile:
    """The share of (workload, seed) pairs where a method's time to target was within a factor of the best."""

    method: str
    colour: int
    factors: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Summary:
    """Everything that is to be told about a handful of runs."""

    title: str
    verdict: tuple[str, ...]
    """Sentences, the one to remember first."""
    notes: tuple[str, ...]
    """How to read it: what was counted, at which rate it errs, what is missing."""
    metrics: tuple[Metric, ...]
    """The first one is what the verdict is about."""
    workloads: tuple[Workload, ...]
    overall: Table | None = None
    """Over all workloads, if there are several."""
    profiles: tuple[Profile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    reproduce: tuple[str, ...] = ()
    """Commands."""
    running: bool = False
    """Whether a run has steps left."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


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

"""A comparison's result as plain values: the command line prints it, the report draws it."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stepwell.compare.results import LeftOut, Outcome, thinned
from stepwell.compare.stats import Ratio
from stepwell.recipes.schema import Recipe
from stepwell.runs.metrics import Metric

MOST_POINTS, MOST_HEAT_ROWS = 120, 24
"""Points of a curve and rows of a density map; longer ones are thinned."""
_PNG = b"\x89PNG\r\n\x1a\n"

Cell = str | int | float | Ratio | None
"""What a table holds; it becomes text where it is printed."""


def cell_text(cell: Cell) -> str:
    """A cell as text: four digits, empty where there is no value."""
    if cell is None:
        return ""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell of a row names it."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def text_rows(self) -> list[list[str]]:
        """The rows as text."""
        return [[cell_text(cell) for cell in row] for row in self.rows]

    def without_empty_columns(self) -> Table:
        """Only the columns that have a value: most are empty while runs go on."""
        columns = range(len(self.columns))
        kept = [c for c in columns if c == 0 or any(row[c] not in (None, "") for row in self.rows)]
        rows = tuple(tuple(row[c] for c in kept) for row in self.rows)
        return Table(self.caption, tuple(self.columns[c] for c in kept), rows)


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
    """Its index among all methods of the summary: the same everywhere."""
    against: str | None
    """The method that it is judged against; None for the baseline."""
    seeds: tuple[int, ...]
    density: Heat | None
    """Density map of its first seed."""
    effective_weight: tuple[float, ...]
    """Density times loss weight in equal bins of unit time, mean 1, at the end of its first seed."""
    bands: tuple[float, ...]
    """The plain held-out loss in equal bands of unit time, at the end, mean over seeds."""
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
    """By the key of the loss."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Runs that differ in method, seed and learning rate only."""

    name: str
    baseline: str
    table: Table
    """Every method against the one that it is judged against."""
    methods: tuple[MethodView, ...]
    runs: tuple[RunView, ...]
    settings: dict[str, Any]
    """The settings that all its runs share."""
    forecasts: Table | None = None
    """What the runs expected of their draws, if they recorded it."""


@dataclass(frozen=True)
class Profile:
    """The share of (workload, seed) pairs where a method's time to target was within a factor of the best."""

    method: str
    colour: int
    factors: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Summary:
    """Everything that a comparison of runs has to report."""

    title: str
    verdict: tuple[str, ...]
    """Sentences, the most important one first."""
    notes: tuple[str, ...]
    """How to read it: what was measured, at which error rate, what is missing."""
    metrics: tuple[Metric, ...]
    """The losses that have curves; the verdict is about the first one."""
    workloads: tuple[Workload, ...]
    overall: Table | None = None
    """Over all workloads, if there are several."""
    profiles: tuple[Profile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    reproduce: tuple[str, ...] = ()
    """Commands."""
    running: bool = False
    """Whether a run is not finished."""

    @property
    def colours(self) -> dict[str, int]:
        """The colour of every method by its name."""
        by_name = {method.name: method.colour for workload in self.workloads for method in workload.methods}
        return by_name | {profile.method: profile.colour for profile in self.profiles}

    def plain(self) -> dict[str, Any]:
        """For JSON, with tables as text."""
        shown = replace(
            self,
            workloads=tuple(
                replace(one, table=_as_text(one.table), forecasts=one.forecasts and _as_text(one.forecasts))
                for one in self.workloads
            ),
            overall=self.overall and _as_text(self.overall),
        )
        metrics = tuple({"key": metric.key, "name": metric.title} for metric in self.metrics)
        return {**asdict(shown), "metrics": metrics}


def _as_text(table: Table) -> Table:
    return replace(table, rows=tuple(map(tuple, table.text_rows())))


def method_view(
    method: str, runs: Sequence[Outcome], colour: int, against: str | None, seconds: float
) -> MethodView:
    """A method over its seeds, with the images that it generated nearest to a training time."""
    first = runs[0]
    last = [run.evaluations[-1].get("bands") or [] for run in runs]
    bands = [sum(values) / len(values) for values in zip(*last, strict=False) if None not in values]
    with_density = [record for record in first.evaluations if record.get("density")]
    kept = thinned(with_density, MOST_HEAT_ROWS)
    return MethodView(
        method,
        colour,
        against,
        tuple(run.seed for run in runs),
        Heat(tuple(r["images"] for r in kept), tuple(_short(r["density"]) for r in kept)) if kept else None,
        _short(with_density[-1].get("effective_weight", ())) if with_density else (),
        _short(bands),
        _sheet(first, seconds),
    )


def _sheet(run: Outcome, seconds: float) -> Sheet | None:
    """The images generated nearest to a training time, so that methods are shown at equal time."""
    times = {int(record["step"]): float(record["seconds"]) for record in run.evaluations}
    sheets = []
    for path in run.path.glob("samples/step-*.png"):
        number = path.stem.removeprefix("step-")
        if number.isdigit() and int(number) in times and _is_own_png(path, run.path):
            sheets.append((abs(times[int(number)] - seconds), int(number), path))
    if not sheets:
        return None
    _, step, path = min(sheets)
    try:
        picture = base64.b64encode(path.read_bytes()).decode("ascii")
    except FileNotFoundError:  # its run is being moved or deleted
        return None
    caption = f"{run.method}, seed {run.seed}: step {step}, {times[step]:.0f} training seconds"
    return Sheet(f"data:image/png;base64,{picture}", caption)


def _is_own_png(path: Path, run: Path) -> bool:
    """Whether a file is a PNG inside its run: a page must not show what a link points to elsewhere."""
    if not path.resolve().is_relative_to(run.resolve()) or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_PNG)) == _PNG


def run_view(run: Outcome, losses: Sequence[Metric]) -> RunView:
    """A run's curves."""
    keys = [loss.key for loss in losses if loss.key in run.evaluations[-1]]
    curves = {key: run.values(key) for key in keys}
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
        {key: tuple(_finite(curve[place]) for place in places) for key, curve in curves.items()},
        run.warnings,
    )


def _short(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)


def _finite(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def shared_settings(recipes: Sequence[Recipe]) -> dict[str, Any]:
    """The settings that all recipes share."""
    first = recipes[0].values()
    return {
        key: value
        for key, value in first.items()
        if key != "out" and all(getattr(recipe, key) == value for recipe in recipes)
    }

"""A comparison's result as plain values: the command line prints it, the report draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from stepwell.analyze.noised import NoisedExample
from stepwell.compare.results import LeftOut, Outcome, thinned
from stepwell.compare.samples import Sheet, sheet_at
from stepwell.compare.stats import Ratio
from stepwell.recipes.schema import Recipe
from stepwell.runs.metrics import Metric

MOST_POINTS, MOST_HEAT_ROWS = 120, 24
"""Points of a curve and rows of a density map; longer ones are thinned."""

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
    leading: tuple[str, ...] = ()
    """The columns that a page shows before its reader asks for more; none: all of them."""

    def text_rows(self) -> list[list[str]]:
        """The rows as text."""
        return [[cell_text(cell) for cell in row] for row in self.rows]

    def without_empty_columns(self) -> Table:
        """Only the columns that have a value: most are empty while runs go on."""
        columns = range(len(self.columns))
        return self._with(
            [c for c in columns if c == 0 or any(row[c] not in (None, "") for row in self.rows)]
        )

    def led(self) -> Table:
        """Only the leading columns."""
        return self._with([self.columns.index(name) for name in self.leading])

    def _with(self, kept: Sequence[int]) -> Table:
        rows = tuple(tuple(row[c] for c in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[c] for c in kept), rows=rows)


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
    """The simple held-out loss in equal bands of unit time, at the end, mean over seeds."""
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
    noise: NoisedExample | None = None
    """What an image looks like over unit time; None if its process cannot be built here."""


@dataclass(frozen=True)
class Profile:
    """The share of (workload, seed) pairs where a method's time to target was within a factor of the best."""

    method: str
    colour: int
    factors: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class AnswerRow:
    """One method in the picture that answers the question."""

    method: str
    ratio: Ratio | None
    """What the verdict is by, over the other method's; None for the baseline and for what is not compared."""
    note: str = ""
    """Where it is judged against another method or by another loss than the rest; or why it has no ratio."""


@dataclass(frozen=True)
class Answer:
    """The picture that answers the question on one workload, or over all: the best method first."""

    name: str
    measure: str
    """What the ratios are of."""
    rows: tuple[AnswerRow, ...]


@dataclass(frozen=True)
class RunState:
    """How far one run is, as its newest files say."""

    name: str
    """Workload, method and seed."""
    state: str
    """running, stopped, failed, queued or done."""
    step: int = 0
    steps: int = 0
    steps_per_second: float | None = None
    seconds_left: float | None = None
    """Of training; evaluation and generation come on top."""
    loss: float | None = None
    """The training loss."""
    learning_rate: float | None = None
    sheet: Sheet | None = None
    message: str = ""
    """Why it failed."""


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
    answers: tuple[Answer, ...] = ()
    """The pictures under the headline."""
    overall: Table | None = None
    """Over all workloads, if there are several."""
    profiles: tuple[Profile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    reproduce: tuple[str, ...] = ()
    """Commands."""
    running: bool = False
    """Whether a run is not finished, or of a study not begun."""
    states: tuple[RunState, ...] = ()
    """Of a page that follows its runs: how far each is."""

    @property
    def state(self) -> str:
        """running, stopped or ended."""
        states = {run.state for run in self.states}
        if "running" in states or (not states and self.running):
            return "running"
        if "stopped" in states:
            return "stopped"
        # Between two runs of a study no process has a run open.
        return "running" if "queued" in states else "ended"

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
    ended = [run for run in runs if run.finished] or runs
    last = [run.evaluations[-1].get("bands") or [] for run in ended]
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
        next((sheet for run in runs if (sheet := sheet_at(run, seconds)) is not None), None),
    )


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

"""What a comparison found, as plain values: the command line prints them, pages draw them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


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
class LeftOut:
    """A directory that could not be read as a run."""

    path: str
    reason: str


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

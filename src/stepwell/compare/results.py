"""Runs as comparisons read them: recipe, evaluations and score; and thin records of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stepwell.core import require
from stepwell.core.errors import StepwellError, quoted
from stepwell.core.reading import Absent, Unreadable, object_of, regular_file
from stepwell.recipes.schema import BadRecipe, Recipe
from stepwell.runs.directory import ENVIRONMENT, METRICS, RECIPE, safe_name
from stepwell.runs.io import write_atomic, write_json
from stepwell.runs.metrics import FORECAST, LOSS, loss, named_now
from stepwell.runs.portable import portable, portable_environment

SCORE = "score.json"
STUDY = "study.json"
TUNING = "tuning"
"""The folder of a study's short runs that choose learning rates; they are not results."""
BASE = "base"
"""The folder of the run that a study's others start from; it is not a result."""


T = TypeVar("T")


def run_folder(workload: str, method: str, seed: int) -> Path:
    """Where a study keeps a run, below its own directory."""
    return Path(safe_name(workload), safe_name(method), str(seed))


@dataclass(frozen=True)
class LeftOut:
    """A directory that could not be read as a run."""

    path: str
    reason: str


class UnreadableRun(StepwellError):
    """A directory that is not a run, or not one that can be scored."""


@dataclass(frozen=True)
class Outcome:
    """One run, finished or not."""

    path: Path
    recipe: Recipe
    evaluations: tuple[dict[str, Any], ...]
    score: dict[str, Any] = field(default_factory=dict)
    """Measured at the end: bits per dimension, distances, PSNR."""
    environment: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The recipe's method."""
        return self.recipe.method

    @property
    def seed(self) -> int:
        """The recipe's seed."""
        return self.recipe.seed

    @property
    def finished(self) -> bool:
        """Whether its steps or its seconds are used up."""
        last = self.evaluations[-1]
        return self.recipe.limit.reached(last["step"], last["seconds"])

    def settings(self, ignored: frozenset[str]) -> tuple[tuple[str, str], ...]:
        """The settings of its recipe as text, sorted, for comparison with other runs."""
        values = sorted(self.recipe.values().items())
        return tuple((key, str(value)) for key, value in values if key not in ignored)

    def values(self, key: str) -> list[float]:
        """One recorded value over the run's evaluations; NaN where it was not finite."""
        values = (record[key] for record in self.evaluations)
        return [math.nan if value is None else float(value) for value in values]


def read(path: Path) -> Outcome:
    """The outcome of a run directory, or an error that says why it has none."""
    try:
        return _read(path)
    except UnreadableRun:
        # Training may have replaced a file while it was read; what is really wrong still is.
        return _read(path)


def _read(path: Path) -> Outcome:
    settings = _object(path, RECIPE)
    missing = [key for key in ("method", "seed", "steps") if key not in settings]
    if missing:
        raise UnreadableRun(f"{path / RECIPE} has no {', '.join(missing)}: another program wrote it.")
    evaluations, warnings = _metrics(path)
    if not evaluations:
        raise UnreadableRun(f"{path} has no evaluation yet: train it with evaluate_every= above 0.")
    score, about = (_object(path, name) if (path / name).exists() else {} for name in (SCORE, ENVIRONMENT))
    if not _is_score(score):
        raise UnreadableRun(f"{path / SCORE} holds values that are no measurements: evaluate the run again.")
    try:
        recipe = Recipe.from_saved(settings, str(path / RECIPE))
    except BadRecipe as error:
        raise UnreadableRun(str(error)) from None
    return Outcome(path, recipe, evaluations, score, about, warnings)


def _object(path: Path, name: str) -> dict[str, Any]:
    try:
        return object_of(path / name)
    except Absent:
        if not path.is_dir():
            raise UnreadableRun(f"there is no directory {path}.") from None
        raise UnreadableRun(f"{path} is not a run directory: it has no {name}.") from None
    except Unreadable as error:
        raise UnreadableRun(str(error)) from None


def _is_score(value: Any, deep: bool = True) -> bool:
    """Whether a score holds numbers, texts and lists of numbers, and sections of these."""
    return all(
        _is_number(one)
        or isinstance(one, str)
        or (isinstance(one, list) and all(map(_is_number, one)))
        or (deep and isinstance(one, dict) and _is_score(one, deep=False))
        for one in value.values()
    )


def _is_number(value: Any) -> bool:
    """Whether a JSON value is a number that a float holds, or stands for one that was not finite."""
    return value is None or (isinstance(value, float) or (type(value) is int and require.is_finite(value)))


def _metrics(path: Path) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """Evaluations, and warnings as text; a half-written last line is left out."""
    evaluations, warnings, number = [], [], 0
    try:
        with regular_file(path / METRICS).open(encoding="utf-8") as lines:
            for line in lines:
                number += 1
                # Most lines are training steps, which no comparison needs: they are not parsed. Where
                # storage is shared, zeros may stand for what another machine has written just now.
                if not line.endswith("\n") or "\0" in line or line.startswith('{"kind": "train"'):
                    continue
                record = json.loads(line)
                if record["kind"] == "evaluation":
                    evaluations.append(_checked(named_now(record)))
                elif record["kind"] == "warning":
                    warnings.append(f"step {record['step']}: {record['message']}")
    except Absent:
        raise UnreadableRun(f"{path} has no {METRICS}: its training has not begun.") from None
    except Unreadable as error:
        raise UnreadableRun(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableRun(f"{path / METRICS} cannot be read: {error}.") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableRun(f"{path / METRICS} is damaged at line {number}: {error!r}.") from None
    return tuple(evaluations), tuple(warnings)


_NEEDED = ("step", "images", "seconds")
"""What every evaluation has, beside the simple loss."""
_SERIES = ("bands", "density", "effective_weight")


def _checked(record: dict[str, Any]) -> dict[str, Any]:
    record[loss("simple").key]
    for key in _NEEDED:
        if record[key] is None or not _is_number(record[key]) or not 0 <= record[key] < math.inf:
            raise TypeError(f"{key} is {quoted(record[key])}")
    for key, value in record.items():
        is_list = isinstance(value, list) and all(map(_is_number, value))
        if (key.startswith((LOSS, FORECAST)) and not _is_number(value)) or (key in _SERIES and not is_list):
            raise TypeError(f"{key} is {quoted(value)}")
    return record


def read_all(paths: Sequence[Path]) -> tuple[list[Outcome], list[LeftOut]]:
    """Every run in or below the directories, once each; and what cannot be read, with the reason."""
    runs: dict[tuple[Any, ...], Outcome] = {}
    left_out = []
    for path in paths:
        for directory in run_directories(path):
            try:
                outcome = read(directory)
            except UnreadableRun as error:
                left_out.append(LeftOut(str(directory), str(error)))
                continue
            same = runs.setdefault(outcome.settings(frozenset({"out"})), outcome)
            if same is not outcome:
                reason = f"the same method, seed and settings as {same.path}."
                left_out.append(LeftOut(str(directory), reason))
    return list(runs.values()), left_out


def run_directories(path: Path) -> list[Path]:
    """Run directories in or below a path, or the path itself if there are none."""
    inside = []
    for folder, folders, files in os.walk(path):
        skipped: tuple[str, ...] = (TUNING, BASE) if STUDY in files else ()
        if RECIPE in files or METRICS in files:
            inside.append(Path(folder))
            skipped += ("checkpoints", "samples")
        folders[:] = [name for name in folders if name not in skipped]
    return sorted(inside) or [path]


_DROPPED = "sampler/"
"""Diagnostics of samplers, matrices among them: only for the analysis of one run."""
_DIGITS = 5
"""More than any of these numbers is certain to."""
_DENSITIES = 6
"""Evaluations that keep the sampler's density."""


def write_record(outcome: Outcome, place: Path) -> None:
    """Write a thin copy of a finished run, which can be read, compared and reported like the run itself.

    It names no place of the machine that made it, so that others can keep it and run its command.
    """
    place.mkdir(parents=True, exist_ok=True)
    dense = set(thinned(range(len(outcome.evaluations)), _DENSITIES))
    lines = [
        json.dumps(_thin(record, index in dense), separators=(",", ":"))
        for index, record in enumerate(outcome.evaluations)
    ]
    write_atomic(place / METRICS, "".join(f"{line}\n" for line in lines).encode())
    write_json(place / ENVIRONMENT, portable_environment(outcome.environment))
    write_json(place / SCORE, _rounded(outcome.score))
    # Of the weights that it started from, the digest is enough.
    start = Path(outcome.recipe.start).name
    # Last: a record with a recipe is complete.
    write_json(place / RECIPE, {**portable(outcome.recipe.values()), "start": start, "out": ""})


def _thin(record: dict[str, Any], with_density: bool) -> dict[str, Any]:
    dropped = () if with_density else ("density", "effective_weight")
    kept = {k: v for k, v in record.items() if not k.startswith(_DROPPED) and k not in dropped}
    return {key: _rounded(value) for key, value in kept.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def thinned(values: Sequence[T], most: int) -> list[T]:
    """At most `most` of the values, evenly chosen, with the first and the last."""
    count = len(values)
    if count <= most:
        return list(values)
    return [values[round(index * (count - 1) / (most - 1))] for index in range(most)]

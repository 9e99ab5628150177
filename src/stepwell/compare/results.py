"""A run directory as comparisons see it: its recipe, evaluations and score."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.core.errors import StepwellError
from stepwell.recipes.schema import MAY_CHANGE
from stepwell.runs.directory import ENVIRONMENT, METRICS, RECIPE
from stepwell.runs.io import write_json

SCORE = "score.json"
FEATURES = "_features"
"""Ends the names under which a score keeps distances: fashion16_features, inception_features."""
STUDY = "study.json"
TUNING = "tuning"
"""The folder of a study's short runs that choose learning rates: not results."""
BASE = "base"
"""The folder of the run that a study's others start from: not a result either."""


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
    recipe: dict[str, Any]
    evaluations: tuple[dict[str, Any], ...]
    score: dict[str, Any] = field(default_factory=dict)
    """What was measured at the end: bits per dimension, distances."""
    environment: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """As the recipe has it."""
        return str(self.recipe["method"])

    @property
    def seed(self) -> int:
        """Of everything random."""
        return int(self.recipe["seed"])

    @property
    def finished(self) -> bool:
        """Whether its steps or its seconds are used up."""
        last, seconds = self.evaluations[-1], self.recipe.get("seconds")
        return last["step"] >= self.recipe["steps"] or (seconds is not None and last["seconds"] >= seconds)

    @property
    def distances(self) -> tuple[str, dict[str, Any]] | None:
        """The features that its images were compared on, and what was found; None if they were not."""
        keys = (key for key in self.score if key.endswith(FEATURES))
        return next(((key.removesuffix(FEATURES), self.score[key]) for key in keys), None)

    def values(self, name: str) -> list[float]:
        """One metric over the run's evaluations; NaN where it was not finite."""
        found = (record[name] for record in self.evaluations)
        return [math.nan if value is None else float(value) for value in found]


def read(path: Path) -> Outcome:
    """The outcome of a run directory, or an error that says why it has none."""
    recipe = _object(path, RECIPE)
    missing = [key for key in ("method", "seed", "steps") if key not in recipe]
    if missing:
        raise UnreadableRun(f"{path / RECIPE} has no {', '.join(missing)}: another program wrote it.")
    evaluations, warnings = _metrics(path)
    if not evaluations:
        raise UnreadableRun(f"{path} has no evaluation yet: train it with evaluate_every= above 0.")
    more = [_object(path, name) if (path / name).exists() else {} for name in (SCORE, ENVIRONMENT)]
    return Outcome(path, recipe, evaluations, more[0], more[1], warnings)


def _object(path: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not path.is_dir():
            raise UnreadableRun(f"there is no directory {path}.") from None
        raise UnreadableRun(f"{path} is not a run directory: it has no {name}.") from None
    except (OSError, ValueError) as error:
        raise UnreadableRun(f"{path / name} cannot be read: {error}.") from None
    if not isinstance(found, dict):
        raise UnreadableRun(f"{path / name} is not a JSON object.")
    return found


def _metrics(path: Path) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """Evaluations, and warnings in words; a half-written last line is left out."""
    evaluations, warnings, number = [], [], 0
    try:
        with (path / METRICS).open(encoding="utf-8") as lines:
            for line in lines:
                number += 1
                # Most lines are of training steps, which no comparison reads: they are not even parsed.
                if not line.endswith("\n") or line.startswith('{"kind": "train"'):
                    continue
                record = json.loads(line)
                if record["kind"] == "evaluation":
                    evaluations.append(_whole(record))
                elif record["kind"] == "warning":
                    warnings.append(f"step {record['step']}: {record['message']}")
    except FileNotFoundError:
        raise UnreadableRun(f"{path} has no {METRICS}: its training has not begun.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableRun(f"{path / METRICS} cannot be read: {error}.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableRun(f"{path / METRICS} is damaged at line {number}: {error!r}.") from None
    return tuple(evaluations), tuple(warnings)


def _whole(record: dict[str, Any]) -> dict[str, Any]:
    for key in ("step", "images", "seconds", "objective/none"):
        if not isinstance(record[key], int | float | None):
            raise TypeError(f"{key} is {record[key]!r}")
    return record


def read_all(paths: Sequence[Path]) -> tuple[list[Outcome], list[LeftOut]]:
    """Every run in or below the given directories, once each; and what cannot be read, with the reason."""
    found: dict[tuple[Any, ...], Outcome] = {}
    left_out = []
    for path in paths:
        for directory in _directories(path):
            try:
                outcome = read(directory)
            except UnreadableRun as error:
                left_out.append(LeftOut(str(directory), str(error)))
                continue
            same = found.setdefault(_identity(outcome), outcome)
            if same is not outcome:
                left_out.append(
                    LeftOut(str(directory), f"the same method, seed and settings as {same.path}.")
                )
    return list(found.values()), left_out


def _identity(outcome: Outcome) -> tuple[Any, ...]:
    return tuple(sorted((key, str(value)) for key, value in outcome.recipe.items() if key != "out"))


def _directories(path: Path) -> Iterator[Path]:
    """Run directories in or below a path, and the path itself if there are none."""
    inside = {file.parent for name in (RECIPE, METRICS) for file in path.rglob(name)}
    studies = {file.parent for file in path.rglob(STUDY)}
    no_results = {study / name for study in studies for name in (TUNING, BASE)}
    chosen = sorted(run for run in inside if not no_results & {run, *run.parents})
    yield from chosen or [path]


_LEFT_OUT = ("sampler/",)
"""What samplers show of themselves, matrices too: for looking at one run."""
_DIGITS = 5
_DENSITIES = 6
"""Evaluations that keep where the sampler looked."""


def write_record(outcome: Outcome, place: Path) -> None:
    """Write the thin record of a finished run: it can be read, compared and reported like the run itself."""
    place.mkdir(parents=True, exist_ok=True)
    count = len(outcome.evaluations)
    looks = {round(index * (count - 1) / max(1, _DENSITIES - 1)) for index in range(_DENSITIES)}
    lines = [
        json.dumps(_thin(record, index in looks), separators=(",", ":"))
        for index, record in enumerate(outcome.evaluations)
    ]
    (place / METRICS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    write_json(place / ENVIRONMENT, outcome.environment)
    write_json(place / SCORE, _rounded(outcome.score))
    # Last: what has a recipe is a whole record.
    write_json(place / RECIPE, {**outcome.recipe, "out": ""})


def _thin(record: dict[str, Any], looks: bool) -> dict[str, Any]:
    dropped = () if looks else ("density", "effective_weight")
    return {
        key: _rounded(value)
        for key, value in record.items()
        if not key.startswith(_LEFT_OUT) and key not in dropped
    }


def _rounded(value: Any) -> Any:
    """Five digits are more than any of these numbers is sure of."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


Grouped = dict[str, dict[str, list[Outcome]]]
"""Runs by workload, then by method, then in the order of their seeds."""
_OF_THE_RUN = MAY_CHANGE | {"method", "seed", "evaluate_every", "checkpoint_every"}
"""Settings in which runs of one workload may differ; and the learning rate, which each method may choose."""


def group(runs: Sequence[Outcome], study: dict[str, Any]) -> Grouped:
    """Runs under the settings that set workloads apart, methods in the order of the study."""
    keys = [_settings(run, _OF_THE_RUN | {"lr"}) for run in runs]
    if len({(key, run.method, run.seed) for key, run in zip(keys, runs, strict=True)}) < len(runs):
        # The same method and seed at two learning rates: then the rate is what is compared.
        keys = [_settings(run, _OF_THE_RUN - {"steps", "seconds"}) for run in runs]
    every = sorted({name for key in keys for name, _ in key})
    differing = [name for name in every if len({dict(key).get(name) for key in keys}) > 1]
    alone = _only_name(runs, study)
    found: Grouped = {}
    for run, key in zip(runs, keys, strict=True):
        name = _called(run, study) or _name(dict(key), differing) or alone
        found.setdefault(name, {}).setdefault(run.method, []).append(run)
    ranks = {str(method): place for place, method in enumerate(study.get("methods", ()))}
    return {
        name: {
            method: sorted(of[method], key=lambda run: run.seed)
            for method in sorted(of, key=lambda method: ranks.get(method, len(ranks)))
        }
        for name, of in found.items()
    }


def _settings(run: Outcome, apart: frozenset[str]) -> tuple[tuple[str, str], ...]:
    return tuple((key, str(value)) for key, value in sorted(run.recipe.items()) if key not in apart)


def _called(run: Outcome, study: dict[str, Any]) -> str:
    """As its study calls it: the one workload whose settings the run has."""
    workloads = study.get("workloads", {})
    found = [
        str(name)
        for name, settings in (workloads.items() if len(workloads) > 1 else ())
        if all(str(run.recipe.get(key)) == str(value) for key, value in settings.items() if key != "recipe")
    ]
    return found[0] if len(found) == 1 else ""


def _name(settings: dict[str, str], differing: Sequence[str]) -> str:
    """The one value that differs, or key=value of several."""
    if len(differing) == 1 and differing[0] != "lr":
        return settings.get(differing[0], "")
    return ", ".join(f"{part}={settings.get(part)}" for part in differing)


def _only_name(runs: Sequence[Outcome], study: dict[str, Any]) -> str:
    """A single workload is called as its study has it, or by its data."""
    named = list(study.get("workloads", ()))
    return str(named[0]) if len(named) == 1 else Path(str(runs[0].recipe.get("data", "runs"))).name

"""How far every run is, for the strip on top of a watched page: running, queued, failed, stopped or done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepwell.compare.results import BASE, STUDY, TUNING, run_directories, run_folder
from stepwell.compare.samples import newest_sheet
from stepwell.compare.study import read_study
from stepwell.compare.summary import NothingToReport, summarise
from stepwell.compare.views import RunState, Summary
from stepwell.recipes.schema import Recipe
from stepwell.runs.directory import RECIPE
from stepwell.runs.lock import is_held
from stepwell.runs.status import failure, newest_records

_RATE_OVER = 20
"""Training records, at most, over which the speed is averaged."""


def followed(paths: Sequence[Path]) -> Summary:
    """The summary of runs that may still train, with how far each of them is."""
    states = tuple(state for path in paths for state in run_states(path))
    try:
        return replace(summarise(paths), states=states)
    except NothingToReport:
        if not states:
            raise
        title = ", ".join("/".join(path.parts[-2:]) for path in paths)
        return Summary(title, ("No evaluation yet.",), (), (), (), states=states)


def run_states(path: Path) -> Iterator[RunState]:
    """The runs in or below a directory, and those that its studies have not begun."""
    folders = [folder for folder in run_directories(path) if (folder / RECIPE).exists()]
    planned = dict(_planned(path))
    for folder in dict.fromkeys([*planned, *_tuning(path), *folders]):
        yield _state(folder, planned.get(folder, ""))


def _planned(path: Path) -> Iterator[tuple[Path, str]]:
    """Folders and names of the runs of every study below a path, in the order in which they are run."""
    for file in sorted(path.rglob(STUDY)):
        study = read_study([file.parent])
        for workload, method, seed in study.runs:
            where = f"{workload}: " if len(study.workloads) > 1 else ""
            yield file.parent / run_folder(workload, method, seed), f"{where}{method}, seed {seed}"


def _tuning(path: Path) -> list[Path]:
    """Runs that choose a study's rates or that its others start from, while they train."""
    within = [file.parent for file in path.rglob(RECIPE) if {TUNING, BASE} & set(file.parts)]
    return [folder for folder in sorted(within) if is_held(folder)]


def _state(folder: Path, name: str) -> RunState:
    try:
        recipe = Recipe.from_saved(json.loads((folder / RECIPE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        reason = failure(folder)
        return RunState(name or str(folder), "failed" if reason else "queued", message=reason)
    if not name:
        name = f"{recipe.method}, seed {recipe.seed}"
        name += f", lr {recipe.lr:g} (tuning)" if TUNING in folder.parts else ""
    records = newest_records(folder)
    trained = [record for record in records if record.get("kind") == "train" and "seconds" in record]
    trained = trained[-_RATE_OVER:]
    last = max(records, key=lambda record: record.get("step", 0), default={})
    step, seconds = int(last.get("step", 0)), float(last.get("seconds", 0.0))
    speed = _speed(trained)
    newest = trained[-1] if trained else {}
    reason, writing = failure(folder), is_held(folder)
    over = recipe.limit.reached(step, seconds)
    state = "failed" if reason else "done" if over else "stopped"
    if writing or (writing is None and state == "stopped"):
        state = "running"
    return RunState(
        name=name,
        state=state,
        step=step,
        steps=recipe.steps,
        steps_per_second=speed,
        seconds_left=_left(recipe, step, seconds, speed),
        loss=newest.get("loss"),
        learning_rate=newest.get("learning_rate"),
        sheet=newest_sheet(folder),
        message=reason,
    )


def _speed(trained: Sequence[dict[str, Any]]) -> float | None:
    """Steps per second of training between the first and the last of some records."""
    if len(trained) < 2:
        return None
    first, last = trained[0], trained[-1]
    seconds = last["seconds"] - first["seconds"]
    return (last["step"] - first["step"]) / seconds if seconds > 0 else None


def _left(recipe: Recipe, step: int, seconds: float, speed: float | None) -> float | None:
    by_steps = (recipe.steps - step) / speed if speed else None
    if recipe.seconds is None:
        return by_steps
    by_clock = max(0.0, recipe.seconds - seconds)
    return by_clock if by_steps is None else min(by_steps, by_clock)

"""Every comparison behind RESULTS.md as a ratio with all its digits: docs/results.md draws them.

Most are judged again from the thin records of their runs. `pays` and `long` kept the text of their ratios.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import law_table
import seconds
import studies
from results import HERE, read_ratio, rows_of

from stepwell.compare.judgement import Judgement
from stepwell.compare.run_study import Workspace, outcomes
from stepwell.compare.stats import FEWEST_SEEDS, Ratio
from stepwell.compare.study import load_study
from stepwell.compare.summary import judgements_of
from stepwell.compare.tuning import tuned
from stepwell.runs.metrics import loss

SAME_LOSS, TO_END, END = "images for the same loss", "images to the end", "final loss"
SIMPLE = loss("simple").title
_MAIN = ("auto", "neyman")
"""What a study is asked about first: the default, and what was it before."""


@dataclass(frozen=True)
class Comparison:
    """One method against another on one workload."""

    method: str
    against: str
    study: str
    """The study that made it; several if they share their runs."""
    workload: str
    judged_by: str
    measure: str
    ratio: Ratio


def comparisons() -> list[Comparison]:
    """All of them; what several studies made of the same runs once."""
    return _together(_every())


def main_comparisons() -> list[Comparison]:
    """One for each study and workload: `auto` if it is there, else `neyman`, else the first that is named."""
    chosen: dict[tuple[str, str], Comparison] = {}
    for one in _every():
        known = chosen.setdefault((one.study, one.workload), one)
        if _rank(one) < _rank(known):
            chosen[one.study, one.workload] = one
    return _together(chosen.values())


def _rank(one: Comparison) -> int:
    sampler = one.method.partition("+")[0]
    return _MAIN.index(sampler) if sampler in _MAIN else len(_MAIN)


def _every() -> Iterator[Comparison]:
    return chain(_of_studies(), _of_law(), _of_seconds(), _of_pays(), _of_long())


def _together(every: Iterable[Comparison]) -> list[Comparison]:
    found: dict[Comparison, list[str]] = {}
    for one in every:
        found.setdefault(replace(one, study=""), []).append(one.study)
    return [replace(one, study=", ".join(studies)) for one, studies in found.items()]


def _of_studies() -> Iterator[Comparison]:
    commands = {record["command"] for record in _records() if "studies.py" in record["command"]}
    for command in sorted(commands):
        _, _, name, *words = shlex.split(command)
        study = load_study(name, words)
        apart = studies.RECORDS.with_name(f"runs-{name}")
        places = Workspace(Path(), apart if name in studies.APART else studies.RECORDS)
        study = tuned(study, places.out, places.records).of(study)
        for judgement in judgements_of(outcomes(study, places), study):
            yield _judged(name, judgement.workload, judgement)


def _of_law() -> Iterator[Comparison]:
    for point in law_table.points():
        yield _judged("law", point.workload, replace(point.judgement, method=point.method))


def _of_seconds() -> Iterator[Comparison]:
    for workload in seconds.RATES:
        study, places = seconds.study_of(workload)
        for judgement in judgements_of(outcomes(study, places), study):
            yield _judged("seconds", workload, judgement)


def _judged(study: str, workload: str, judgement: Judgement) -> Comparison:
    measure = END if judgement.images.missed else SAME_LOSS
    title = judgement.metric.title
    return Comparison(
        judgement.method, judgement.against, study, workload, title, measure, judgement.decisive
    )


def _of_pays() -> Iterator[Comparison]:
    for row in rows_of("pays"):
        method, _, against = row["method"].partition(" against ")
        (name,) = (name for name, cell in row.items() if cell.endswith(" *"))
        ratio = read_ratio(row[name], row["seeds"])
        yield Comparison(method, against, "pays", "linear-64", loss(name).title, SAME_LOSS, ratio)
    for row in rows_of("pays-elsewhere"):
        ratio = read_ratio(row["simple"], row["seeds"])
        yield Comparison("neyman", "uniform", "pays", row["where"], SIMPLE, SAME_LOSS, ratio)


def _of_long() -> Iterator[Comparison]:
    for row in rows_of("long"):
        if row["after"] != "4/4" or int(row["seeds"]) < FEWEST_SEEDS:
            continue
        images, end = row["images to the other's loss there"], row["loss over the other's there"]
        measure, cell = (END, end) if "not reached" in images else (TO_END, images)
        ratio = read_ratio(cell, row["seeds"])
        names = (row["method"], row["against"], "long", row["workload"], row["judged by"])
        yield Comparison(*names, measure, ratio)


def _records() -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in sorted((HERE / "records").glob("*.json"))]

"""Run what is missing of a study: tune, train, score, keep records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepwell.compare.pool import Event, run_trials
from stepwell.compare.results import STUDY, LeftOut, Outcome, write_record
from stepwell.compare.study import Study
from stepwell.compare.summary import summarise_runs
from stepwell.compare.trials import (
    Trial,
    base_trials,
    chosen_rates,
    final_trials,
    require_features,
    require_sound,
    tuning_trials,
)
from stepwell.compare.views import Summary
from stepwell.core.errors import StepwellError
from stepwell.runs.io import write_json

Hear = Callable[[Event], None]


@dataclass
class Places:
    """Where a study keeps its runs, and thin records of them if wanted."""

    out: Path
    records: Path | None = None
    workers: int = 1
    failures: list[LeftOut] = field(default_factory=list)


def run_study(
    study: Study, places: Places, begin: Callable[[Sequence[Trial], int], None], hear: Hear
) -> dict[str, float]:
    """Everything that is not there yet; the learning rates that were chosen.

    `begin` is told what is about to run and how many were there already, `hear` every event.
    """
    require_sound(study)
    require_features(study)
    _write_study(study, places, {})
    _run_base(study, places, begin, hear)
    short = tuning_trials(study, places.out, places.records)
    _run(short, study, places, begin, hear)
    rates = chosen_rates(study, short)
    _write_study(study, places, rates)
    _run(final_trials(study, rates, places.out, places.records), study, places, begin, hear)
    return rates


def _run_base(study: Study, places: Places, begin: Any, hear: Hear) -> None:
    """Train what all others start from; without it there is nothing to run."""
    base = base_trials(study, places.out)
    if not base:
        return
    _run(base, study, replace(places, records=None), begin, hear)
    if base[0].outcome() is None:
        reason = places.failures[-1].reason
        raise StepwellError(f"the run that all others start from was not finished: {reason}")


def _run(trials: Sequence[Trial], study: Study, places: Places, begin: Any, hear: Hear) -> None:
    missing = [trial for trial in trials if trial.outcome() is None]
    begin(missing, len(trials) - len(missing))
    for event in run_trials(missing, study.effort, places.workers):
        if event.kind in ("failed", "interrupted"):
            reason = event.message or "it was stopped, and saved: run the same command again."
            places.failures.append(LeftOut(event.trial.recipe.out, reason))
        elif event.kind == "done" and places.records is not None:
            outcome = event.trial.outcome()
            assert outcome is not None, "it was done"
            write_record(outcome, event.trial.places[-1])
        hear(event)


def _write_study(study: Study, places: Places, rates: dict[str, float]) -> None:
    """The study beside its runs, so that reports know who is judged by what."""
    try:
        places.out.mkdir(parents=True, exist_ok=True)
        write_json(places.out / STUDY, {**study.plain(), "learning_rates": rates})
    except OSError as error:
        raise StepwellError(f"cannot write to {places.out}: {error.strerror}.") from None


def outcomes(study: Study, rates: dict[str, float], places: Places) -> list[Outcome]:
    """The finished runs of a study."""
    found = (trial.outcome() for trial in final_trials(study, rates, places.out, places.records))
    return [outcome for outcome in found if outcome is not None]


def summary_of(study: Study, rates: dict[str, float], places: Places) -> Summary:
    """What the finished runs say."""
    runs = outcomes(study, rates, places)
    if not runs:
        reasons = "".join(f"\n  - {one.path}: {one.reason}" for one in places.failures[:5])
        raise StepwellError(f"no run of the study was finished:{reasons}")
    return summarise_runs(runs, places.failures, study)

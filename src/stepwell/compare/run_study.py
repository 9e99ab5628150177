"""Run a study: train what is missing (base, tuning, final runs), score it, keep records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepwell.compare.pool import Event, run_trials
from stepwell.compare.results import STUDY, LeftOut, Outcome, write_record
from stepwell.compare.study import Study
from stepwell.compare.summary import summarise_runs
from stepwell.compare.trials import Trial, base_trials, final_trials, require_features, require_sound
from stepwell.compare.tuning import tuned
from stepwell.compare.views import Summary
from stepwell.core.errors import StepwellError
from stepwell.runs.io import write_json
from stepwell.runs.status import clear_failure, write_failure

OnStart = Callable[[Sequence[Trial], int], None]
"""(trials about to run, trials finished before)"""
OnEvent = Callable[[Event], None]
Launch = Callable[[Sequence[Trial], dict[str, int], int], Iterator[Event]]
"""Trains trials, at most so many at once, and tells how they go: here (`pool.py`), or on a cluster."""


@dataclass
class Workspace:
    """Where a study keeps its runs and thin records of them, how they are run, and what failed."""

    out: Path
    records: Path | None = None
    workers: int = 1
    launch: Launch = run_trials
    failures: list[LeftOut] = field(default_factory=list)


def run_study(study: Study, workspace: Workspace, on_start: OnStart, on_event: OnEvent) -> Study:
    """Train and score what is missing; returns the study with its learning rates, tuned if it had none."""
    require_sound(study)
    require_features(study)
    _write_study(study, workspace)
    run_base(study, workspace, on_start, on_event)
    study = study if study.rates else tune(study, workspace, on_start, on_event)
    _write_study(study, workspace)
    _run(final_trials(study, workspace.out, workspace.records), study, workspace, on_start, on_event)
    return study


def tune(study: Study, workspace: Workspace, on_start: OnStart, on_event: OnEvent) -> Study:
    """Short runs until the best learning rate of every method lies inside the grid, or it is wide enough."""
    tried: set[Path] = set()
    while True:
        known = tuned(study, workspace.out, workspace.records, tried)
        new = [trial for trial in known.trials if trial.folders[0] not in tried]
        if not new:
            return known.of(study)
        _run(new, study, workspace, on_start, on_event)
        tried |= {trial.folders[0] for trial in new}


def run_base(study: Study, workspace: Workspace, on_start: OnStart, on_event: OnEvent) -> None:
    """Train the run that all others start from, if the study has one."""
    base = base_trials(study, workspace.out)
    if not base:
        return
    _run(base, study, replace(workspace, records=None), on_start, on_event)
    if base[0].outcome() is None:
        reason = workspace.failures[-1].reason
        raise StepwellError(f"the run that all others start from was not finished: {reason}")


ENOUGH = 3
"""So many runs that fail alike, before any has trained a step: the mistake is in all of them."""


def _run(
    trials: Sequence[Trial], study: Study, workspace: Workspace, on_start: OnStart, on_event: OnEvent
) -> None:
    missing = [trial for trial in trials if trial.outcome() is None]
    for trial in missing:
        clear_failure(trial.folders[0])
    on_start(missing, len(trials) - len(missing))
    # With runs that are there already, a summary is worth more than an early end.
    reasons: list[str] | None = [] if len(missing) == len(trials) else None
    for event in workspace.launch(missing, study.effort, workspace.workers):
        if event.kind in ("failed", "interrupted"):
            reason = event.message or "it was stopped, and saved: run the same command again."
            workspace.failures.append(LeftOut(event.trial.recipe.out, reason))
            if event.kind == "failed":
                write_failure(event.trial.folders[0], reason)
        elif event.kind == "done" and workspace.records is not None:
            outcome = event.trial.outcome()
            assert outcome is not None
            try:
                write_record(outcome, event.trial.folders[-1])
            except OSError as error:
                raise StepwellError(
                    f"cannot write the record {event.trial.folders[-1]}: {error.strerror}. The run itself "
                    "is kept: run the same command again."
                ) from error
        on_event(event)
        if event.kind != "failed":
            reasons = None
        elif reasons is not None:
            reasons.append(event.message)
            if len(reasons) == ENOUGH and len(set(reasons)) == 1:
                raise StepwellError(f"{ENOUGH} runs failed alike, and no more are started: {reasons[0]}")


def _write_study(study: Study, workspace: Workspace) -> None:
    """Write the study beside its runs, so that reports know the baseline and the metrics."""
    try:
        workspace.out.mkdir(parents=True, exist_ok=True)
        write_json(workspace.out / STUDY, study.plain())
    except OSError as error:
        raise StepwellError(f"cannot write to {workspace.out}: {error.strerror}.") from None


def outcomes(study: Study, workspace: Workspace) -> list[Outcome]:
    """The finished runs of a study."""
    finished = (trial.outcome() for trial in final_trials(study, workspace.out, workspace.records))
    return [outcome for outcome in finished if outcome is not None]


def summary_of(study: Study, workspace: Workspace) -> Summary:
    """The summary of the finished runs."""
    runs = outcomes(study, workspace)
    if not runs:
        reasons = "".join(f"\n  - {one.path}: {one.reason}" for one in workspace.failures[:5])
        raise StepwellError(f"no run of the study was finished:{reasons}")
    return summarise_runs(runs, workspace.failures, study)

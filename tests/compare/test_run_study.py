"""A mistake that is in all runs of a study ends it at once; one run's does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stepwell.compare.pool import Event
from stepwell.compare.run_study import Workspace, run_study
from stepwell.compare.study import load_study
from stepwell.compare.trials import Trial
from stepwell.core.errors import StepwellError


def launched(tmp_path: Path, events: Callable[[int, Trial], list[Event]]) -> tuple[int, str]:
    """How many of six trials were launched, and the error, if trial i ends as `events(i, trial)` says."""
    count = 0

    def launch(trials: Sequence[Trial], effort: dict[str, int], workers: int) -> Iterator[Event]:
        nonlocal count
        for trial in trials:
            count += 1
            yield from events(count, trial)

    study = load_study("fashion16", ["methods=uniform,auto", "seeds=3"])
    try:
        run_study(study, Workspace(tmp_path, launch=launch), lambda *_: None, lambda _: None)
    except StepwellError as error:
        return count, str(error)
    return count, ""


def failed(trial: Trial, message: str = "no images") -> Event:
    return Event(trial, "failed", message=message)


def test_three_that_fail_alike_before_the_first_step_are_enough(tmp_path: Path) -> None:
    assert launched(tmp_path, lambda _, trial: [failed(trial)]) == (
        3,
        "3 runs failed alike, and no more are started: no images",
    )


@pytest.mark.parametrize(
    "events",
    [
        lambda number, trial: [failed(trial, f"step {number}")],
        lambda number, trial: [Event(trial, "progress", share=0.1), failed(trial)],
        lambda number, trial: [failed(trial)] if number != 2 else [Event(trial, "done")],
    ],
    ids=["other reasons", "after steps", "one was done"],
)
def test_otherwise_all_are_tried(tmp_path: Path, events: Callable[[int, Trial], list[Event]]) -> None:
    assert launched(tmp_path, events) == (6, "")

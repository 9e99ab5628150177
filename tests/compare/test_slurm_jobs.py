"""The launcher's view of a queue that is made up: what it submits, finds again, waits for and gives up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepwell.compare import slurm
from stepwell.core.errors import StepwellError
from stepwell.recipes.slurm import ControllerAway, Job, job_name


class MadeUp:
    """A SLURM without machines: every look at the queue is the next line of a story."""

    def __init__(self, folder: Path, trials: int) -> None:
        self.finished: set[str] = set()
        self.outs = [str(folder / str(number)) for number in range(trials)]
        self.names = [job_name(Path(out)) for out in self.outs]
        self.trials: list[Any] = [
            SimpleNamespace(recipe=SimpleNamespace(out=out), outcome=lambda out=out: self._outcome(out))
            for out in self.outs
        ]
        self.submitted: list[str] = []
        self.jobs = slurm.Jobs(self.trials, {}, Job(), folder / "slurm")

    def _outcome(self, out: str) -> str | None:
        return out if out in self.finished else None


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    made = MadeUp(tmp_path, 3)

    def submit(jobs: object, name: str, trial: object) -> str:
        made.submitted.append(name)
        return str(len(made.submitted))

    monkeypatch.setattr(slurm.Jobs, "_submit", submit)
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: None)
    return made


def told(made: MadeUp, monkeypatch: pytest.MonkeyPatch, story: list[Any], workers: int) -> list[Any]:
    looks = iter(story)

    def queued() -> dict[str, str]:
        now = next(looks)
        if isinstance(now, Exception):
            raise now
        numbers, done = now
        made.finished |= {made.outs[number] for number in done}
        return {made.names[number]: str(number) for number in numbers}

    monkeypatch.setattr(slurm, "queued", queued)
    return [(made.trials.index(event.trial), event.kind) for event in made.jobs.run(workers)]


def test_jobs_are_found_again_and_few_wait_at_a_time(
    made_up: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = ControllerAway("a restart")
    # Trial 1 is in the queue from before; the controller is away twice; two jobs at a time.
    story = [([1], []), ([1], []), away, away, ([0, 1], []), ([0], [1]), ([2], [0]), ([], [2])]
    assert told(made_up, monkeypatch, story, 2) == [(1, "done"), (0, "done"), (2, "done")]
    assert made_up.submitted == [made_up.names[0], made_up.names[2]], "never what is there already"


def test_a_job_that_leaves_no_result_is_given_up_after_a_while(
    made_up: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(slurm.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    # Files of trial 1 come late, those of trial 2 never.
    story = [([], []), ([], []), *[([], [0])] * 3, *[([], [1])] * 9]
    found = told(made_up, monkeypatch, story, 3)
    assert found == [(0, "done"), (1, "done"), (2, "failed")]
    assert now[0] >= slurm.SETTLING


def test_a_cluster_that_takes_no_job_is_said_at_once(
    made_up: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: object) -> str:
        raise ControllerAway("sbatch: invalid partition")

    monkeypatch.setattr(slurm.Jobs, "_submit", refuse)
    with pytest.raises(StepwellError, match="no job could be submitted: sbatch: invalid partition"):
        told(made_up, monkeypatch, [([], [])] * 2, 3)

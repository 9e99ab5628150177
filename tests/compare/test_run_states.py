"""How far runs are, as a watcher sees it: by their newest records, their locks and what failed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from compare.made_runs import write_run

from stepwell.compare.run_states import followed, run_states
from stepwell.compare.views import RunState
from stepwell.core.errors import StepwellError
from stepwell.runs.directory import Run
from stepwell.runs.lock import Lock, is_held
from stepwell.runs.status import clear_failure, write_failure


def trained(run: Path, *records: tuple[int, float, float]) -> None:
    """Add training records of (step, seconds, loss)."""
    with (run / "metrics.jsonl").open("a") as file:
        for step, seconds, loss in records:
            line = {"kind": "train", "step": step, "seconds": seconds, "loss": loss, "learning_rate": 1e-3}
            file.write(json.dumps(line) + "\n")


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """The run as a process that trains it has it."""
    lock = Lock.take(run)
    try:
        yield
    finally:
        lock.release()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [1.0, 0.5, 0.25], steps=100)


def test_speed_and_time_left_are_those_of_the_newest_records(run: Path) -> None:
    trained(run, (30, 20.0, 0.7), (40, 22.5, 0.6), (60, 27.5, 0.5))
    with locked(run):
        (state,) = run_states(run)
    assert state == RunState("uniform, seed 0", "running", 60, 100, 4.0, 10.0, 0.5, 1e-3)


def test_a_limit_of_seconds_may_come_first(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0, 0.5], steps=1000, seconds=30.0)
    trained(run, (20, 10.0, 0.7), (40, 20.0, 0.6))
    (state,) = run_states(run)
    assert state.seconds_left == 10.0


def test_a_run_whose_process_is_gone_has_stopped(run: Path) -> None:
    assert next(run_states(run)).state == "running", "a copy without its lock may be anything"
    with locked(run):
        assert followed([run]).state == "running"
    assert next(run_states(run)).state == "stopped"
    assert followed([run]).state == "stopped"


def test_whether_a_run_is_written_is_seen_from_its_lock(tmp_path: Path) -> None:
    assert is_held(tmp_path) is None
    run = Run(tmp_path)
    run.open({}, frozenset())
    assert is_held(tmp_path) is True
    run.close()
    assert is_held(tmp_path) is False


def test_a_study_names_who_waits_who_failed_and_who_is_done(tmp_path: Path) -> None:
    content = {"workloads": {"fashion16": {}}, "methods": ["uniform", "neyman"], "seeds": [0, 1]}
    (tmp_path / "study.json").write_text(json.dumps(content))
    assert {state.state for state in run_states(tmp_path)} == {"queued"}
    assert followed([tmp_path]).state == "running", "its first run is about to begin"
    place = tmp_path / "fashion16"
    write_run(place / "uniform" / "0", [1.0, 0.5])
    write_failure(place / "neyman" / "0", "no memory.")
    assert {state.name: (state.state, state.message) for state in run_states(tmp_path)} == {
        "uniform, seed 0": ("done", ""),
        "neyman, seed 0": ("failed", "no memory."),
        "neyman, seed 1": ("queued", ""),
        "uniform, seed 1": ("queued", ""),
    }
    for method, seed in (("neyman", 1), ("uniform", 1)):
        write_run(place / method / str(seed), [1.0, 0.5], method, seed)
    assert followed([tmp_path]).state == "ended", "nothing is left to wait for"
    clear_failure(place / "neyman" / "0")
    assert followed([tmp_path]).state == "running"


def test_where_nothing_is_there_is_nothing_to_follow(tmp_path: Path) -> None:
    with pytest.raises(StepwellError, match="no run to report on"):
        followed([tmp_path])

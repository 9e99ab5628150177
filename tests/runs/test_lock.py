"""One writer for a run directory: races, dead holders, other machines, and holders that were away."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import asdict, replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from stepwell.runs import lock as lock_file
from stepwell.runs.directory import Run, RunError
from stepwell.runs.lock import STALE_AFTER, Lock, LockError, Owner

FORK = multiprocessing.get_context("fork")


def _race(folder: Path, rounds: int, start: Barrier, won: Any) -> None:
    look = lock_file._newest
    for number in range(rounds):
        # Both have seen that it is free before either takes it.
        first = iter((start.wait,))
        lock_file._newest = lambda path, first=first: (look(path), next(first, int)())[0]
        try:
            lock = Lock.take(folder / str(number))
            won[number] += 1  # a shared array without a lock of its own: one writer, or it shows
            start.wait()
            lock.release()
        except LockError:
            start.wait()


def test_of_two_that_race_exactly_one_wins(tmp_path: Path) -> None:
    rounds, start = 50, FORK.Barrier(2)
    counts = [FORK.Array("i", rounds, lock=False) for _ in range(2)]
    for number in range(rounds):
        (tmp_path / str(number)).mkdir()
        if number % 2:  # half of them have a holder that is gone
            abandoned(tmp_path / str(number), _gone())
    racers = [FORK.Process(target=_race, args=(tmp_path, rounds, start, counts[i])) for i in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert [one + two for one, two in zip(*counts, strict=True)] == [1] * rounds
    assert all(len(list(folder.glob(".lock-*"))) == 1 for folder in tmp_path.iterdir())


def abandoned(folder: Path, owner: Owner, age: float = 0.0) -> Path:
    """A lock that its holder never released."""
    path = folder / ".lock-000001"
    path.write_text(json.dumps(asdict(owner)))
    os.utime(path, (time.time() - age,) * 2)
    return path


def _gone() -> Owner:
    """A process of this machine that ended."""
    child = FORK.Process(target=int)
    child.start()
    owner = replace(Owner.here(), pid=child.pid or 0)
    child.join()
    return owner


def _elsewhere() -> Owner:
    return replace(Owner.here(), host="node-7", pid=4711, processes="another boot")


def _held(folder: Path, ready: Any) -> None:
    run = Run(folder)
    run.open({}, frozenset())
    ready.set()
    time.sleep(100)


def test_the_run_of_a_killed_process_can_be_taken_over_at_once(tmp_path: Path) -> None:
    ready = FORK.Event()
    holder = FORK.Process(target=_held, args=(tmp_path / "run", ready))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(RunError, match=rf"process {holder.pid} on \S+ writes there \(last sign of life 0 s"):
        Run(tmp_path / "run").open({}, frozenset())
    os.kill(holder.pid or 0, signal.SIGKILL)
    while Path(f"/proc/{holder.pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    # Nobody has waited for it yet: a dead process that is still listed holds nothing.
    run = Run(tmp_path / "run")
    run.open({}, frozenset())
    run.close()
    holder.join()


def test_a_process_id_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    abandoned(tmp_path, replace(Owner.here(), started="1"))
    Lock.take(tmp_path).release()


def test_another_machine_is_believed_until_the_stated_time(tmp_path: Path) -> None:
    abandoned(tmp_path, _elsewhere(), age=STALE_AFTER - 20)
    with pytest.raises(RunError) as refused:
        Run(tmp_path).open({}, frozenset())
    words = str(refused.value)
    assert "process 4711 on node-7 writes there (last sign of life 100 s ago)" in words
    assert words.count(". ") == 0
    abandoned(tmp_path, _elsewhere(), age=STALE_AFTER + 2)
    Lock.take(tmp_path).release()


def test_a_stopped_process_of_this_machine_is_not_gone(tmp_path: Path) -> None:
    abandoned(tmp_path, Owner.here(), age=10 * STALE_AFTER)
    with pytest.raises(LockError, match=f"process {os.getpid()} on"):
        Lock.take(tmp_path)


def test_who_was_away_too_long_notices_and_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.open({}, frozenset())
    run.record({"kind": "train", "step": 1})
    (tmp_path / ".lock-000002").write_text(json.dumps(asdict(_elsewhere())))
    real = time.time
    monkeypatch.setattr("stepwell.runs.lock.time.time", lambda: real() + STALE_AFTER)
    with pytest.raises(
        RunError, match=r"no longer written by this process: process 4711 on node-7 took over"
    ):
        run.record({"kind": "train", "step": 2})
    run.close()
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
    assert "node-7" in (tmp_path / ".lock-000002").read_text(), "the other's lock is left alone"


def test_the_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.runs.lock.HEARTBEAT", 0.02)
    lock = Lock.take(tmp_path)
    file = tmp_path / ".lock-000001"
    os.utime(file, (0, 0))
    deadline = time.monotonic() + 10
    while file.stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert file.stat().st_mtime > 0
    lock.release()
    assert file.read_text() == "released\n"

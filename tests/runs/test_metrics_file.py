"""metrics.jsonl: what is cut at a resume, and how little ten million steps leave."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from compare.made_runs import evaluations, write_run

from stepwell.compare.results import read
from stepwell.compare.summary import summarise
from stepwell.runs.metrics_file import WINDOW, MetricsFile


def steps_in(path: Path, kind: str = "train") -> list[int]:
    records = map(json.loads, path.read_text().splitlines())
    return [record["step"] for record in records if record["kind"] == kind]


def trained(file: MetricsFile, first: int, last: int, every: int) -> None:
    """Record as training does, with an evaluation at every hundredth record."""
    for step in range(first, last + 1, every):
        file.append({"kind": "train", "step": step, "loss": 1.0})
        if step % (every * WINDOW) == 0:
            file.thin(step, every)
        if step % (every * 100) == 0:
            file.append({"kind": "evaluation", "step": step, "loss": 1.0})


def test_a_cut_drops_later_records_and_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    trained(file, 1, 250, 1)
    path.write_bytes(path.read_bytes() + b'{"kind": "train", "step": 7')
    assert file.cut(199) == (200, 0)
    assert file.newest == "train 199"
    file.append({"kind": "train", "step": 200, "loss": 2.0})
    assert steps_in(path) == list(range(1, 201))
    assert steps_in(path, "evaluation") == [100]
    assert file.cut(-1) == (0, 0)
    file.close()
    assert path.read_bytes() == b""


def test_old_records_are_thinned_by_powers_of_two_and_evaluations_stay(tmp_path: Path) -> None:
    path, every, last = tmp_path / "metrics.jsonl", 50, 50 * 16 * WINDOW
    file = MetricsFile(path)
    trained(file, every, last, every)
    file.close()
    kept = steps_in(path)
    assert kept[-WINDOW:] == list(range(last - every * (WINDOW - 1), last + 1, every))
    gaps = {later - earlier for earlier, later in pairwise(kept)}
    assert gaps == {every * 2**k for k in range(5)}
    assert len(kept) <= WINDOW * (1 + 4 / 2) + 5
    assert len(steps_in(path, "evaluation")) == 16 * WINDOW // 100


def test_a_stopped_run_ends_with_the_lines_of_one_never_stopped(tmp_path: Path) -> None:
    whole, broken = (MetricsFile(tmp_path / name) for name in ("whole", "broken"))
    trained(whole, 1, 6 * WINDOW, 1)
    # Killed shortly after old records were thinned, resumed at a checkpoint from before that, twice.
    trained(broken, 1, 4 * WINDOW + 3, 1)
    broken.cut(3 * WINDOW - 100)
    trained(broken, 3 * WINDOW - 99, 5 * WINDOW, 1)
    broken.cut(5 * WINDOW - 1)
    trained(broken, 5 * WINDOW, 6 * WINDOW, 1)
    whole.close()
    broken.close()
    assert (tmp_path / "broken").read_bytes() == (tmp_path / "whole").read_bytes()


def test_ten_million_steps_leave_less_than_ten_thousand_records() -> None:
    from stepwell.runs.metrics_file import _stays

    last = 10_000_000 // WINDOW * WINDOW
    assert sum(_stays(step, last, 1) for step in range(1, last + 1)) < 9_000


def test_readers_read_on_while_records_come_and_go(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0, 0.5, 0.25])
    made = evaluations([1.0] * 40)
    file, stop, seen = MetricsFile(run / "metrics.jsonl"), threading.Event(), []
    file.cut(-1)
    file.append(made[0])

    def write() -> None:
        while not stop.is_set():
            for record in made[1:]:
                file.append(record)
                file.append({"kind": "train", "step": record["step"], "loss": 1.0})
                file.thin(record["step"] + 10 * WINDOW, 3)
            file.cut(0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(150):
            seen.append(len(read(run).evaluations))
            summarise([tmp_path])
    finally:
        stop.set()
        writer.join()
        file.close()
    assert min(seen) >= 1
    assert len(set(seen)) > 3, "it changed meanwhile"


@pytest.mark.parametrize("torn", ['{"kind": "evaluation", "st', "\0" * 40, "\0" * 40 + "}\n"])
def test_what_is_half_there_is_not_there_yet(tmp_path: Path, torn: str) -> None:
    run = write_run(tmp_path / "run", [1.0, 0.5])
    before: Any = read(run).evaluations
    with (run / "metrics.jsonl").open("a") as file:
        file.write(torn)
    assert read(run).evaluations == before


def test_a_report_of_runs_that_are_deleted_meanwhile(tmp_path: Path) -> None:
    """Every file of one run is taken away in turn: the other run is reported all the same."""
    for name in ("recipe.json", "metrics.jsonl", "score.json", "environment.json"):
        folder = tmp_path / name
        write_run(folder / "stays", [1.0, 0.5])
        (write_run(folder / "goes", [1.0, 0.5], seed=1) / name).unlink()
        found = summarise([folder])
        assert {run.seed for run in found.workloads[0].runs} >= {0}

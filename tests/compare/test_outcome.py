"""Reading run directories: complete, truncated, foreign, half-written."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from compare.made_runs import evaluations, write_run

from stepwell.compare.results import UnreadableRun, read, read_all, write_record
from stepwell.compare.summary import summarise


def test_a_run_is_read(tmp_path: Path) -> None:
    outcome = read(write_run(tmp_path / "run", [1.0, 0.5, 0.25], "min-snr", 7))
    assert (outcome.method, outcome.seed, outcome.finished) == ("min-snr", 7, True)
    assert outcome.values("objective/simple") == [1.0, 0.5, 0.25]
    assert outcome.score["fashion16_features"]["frechet_distance"] == 2.5


def test_what_was_not_finite_is_nan(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0, 0.5])
    text = (run / "metrics.jsonl").read_text().replace('"objective/simple": 0.5', '"objective/simple": null')
    (run / "metrics.jsonl").write_text(text)
    assert math.isnan(read(run).values("objective/simple")[-1])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: (run / "recipe.json").unlink(), "is not a run directory: it has no recipe.json"),
        (lambda run: (run / "recipe.json").write_text("{"), "recipe.json is not valid JSON"),
        (lambda run: (run / "recipe.json").write_text("[]"), "is not a JSON object"),
        (lambda run: (run / "recipe.json").write_text('{"lr": 1}'), "has no method, seed, steps"),
        (lambda run: (run / "metrics.jsonl").unlink(), "its training has not begun"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "has no evaluation yet"),
        (lambda run: (run / "metrics.jsonl").write_text("nonsense\n"), "is damaged at line 1"),
        (lambda run: (run / "metrics.jsonl").write_text("[1]\n"), "is damaged at line 1"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n"), "cannot be read"),
        (lambda run: (run / "metrics.jsonl").write_text('{"kind": "evaluation"}\n'), "is damaged at line 1"),
        (lambda run: (run / "score.json").write_text("{"), "score.json is not valid JSON"),
    ],
)
def test_what_cannot_be_read_is_named_and_left_out(tmp_path: Path, damage: object, reason: str) -> None:
    write_run(tmp_path / "good", [1.0, 0.5])
    bad = write_run(tmp_path / "bad", [1.0, 0.5], seed=1)
    damage(bad)  # type: ignore[operator]
    with pytest.raises(UnreadableRun, match=reason):
        read(bad)
    runs, left_out = read_all([tmp_path])
    assert [run.path.name for run in runs] == ["good"]
    assert [(Path(one.path).name, reason in one.reason) for one in left_out] == [("bad", True)]
    assert summarise([tmp_path]).left_out == tuple(left_out)


def test_a_half_written_line_is_not_there_yet(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0, 0.5, 0.25])
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[:-20])
    outcome = read(run)
    assert outcome.values("objective/simple") == [1.0, 0.5]
    assert not outcome.finished


def test_the_same_run_counts_once_and_tuning_runs_never(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [1.0, 0.5])
    write_run(tmp_path / "copy", [1.0, 0.5])
    write_run(tmp_path / "study/tuning/uniform/0.1", [1.0, 0.1], seed=9)
    write_run(tmp_path / "study/w/uniform/1", [1.0, 0.5], seed=1)
    (tmp_path / "study/study.json").write_text("{}")
    runs, left_out = read_all([tmp_path])
    assert sorted(run.seed for run in runs) == [0, 1]
    assert len(left_out) == 1
    assert "the same method, seed and settings" in left_out[0].reason


def test_a_thin_record_says_the_same_in_a_tenth_of_the_room(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1 / (1 + t) for t in range(40)])
    portrait = {"sampler/interdependence": [[0.123456789] * 20] * 20}
    lines = [json.dumps({**record, **portrait}) for record in evaluations([1 / (1 + t) for t in range(40)])]
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    write_record(read(run), tmp_path / "thin")
    thin, whole = read(tmp_path / "thin"), read(run)
    assert thin.values("objective/simple") == pytest.approx(whole.values("objective/simple"), rel=1e-4)
    assert replace(thin.recipe, out=whole.recipe.out) == whole.recipe
    assert thin.score == whole.score
    sizes = [sum(f.stat().st_size for f in path.rglob("*.*")) for path in (tmp_path / "thin", run)]
    assert sizes[0] < sizes[1] / 10
    tables = []
    for path in (run, tmp_path / "thin"):
        tables.append(summarise([path]).workloads[0].table.text_rows())
    assert tables[0] == tables[1]


def test_a_thin_record_names_no_place_of_its_machine(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", [1.0, 0.5], data="/mnt/photos", start=str(tmp_path / "base"), out="/x/run"
    )
    command = ["stepwell", "compare", "/mnt/mine.toml", "data=/mnt/photos", "out=/x", "seeds=3"]
    (run / "environment.json").write_text(json.dumps({"command": command, "cores": 2}))
    write_record(read(run), tmp_path / "thin")
    recipe, where = (
        json.loads((tmp_path / "thin" / f"{name}.json").read_text()) for name in ("recipe", "environment")
    )
    assert (recipe["data"], recipe["start"], recipe["out"]) == ("photos", "base", "")
    assert where == {"command": ["stepwell", "compare", "mine.toml", "data=photos", "seeds=3"], "cores": 2}
    assert summarise([tmp_path / "thin"]).reproduce == ("stepwell compare mine.toml data=photos seeds=3",)


def test_reading_is_linear_in_the_number_of_records(tmp_path: Path) -> None:
    """Twice the records take about twice the time; a factor of 4 leaves room for noise."""

    def seconds(records: int) -> float:
        folder = tmp_path / str(records)
        for seed in range(30):
            write_run(folder / str(seed), [1 / (1 + t) for t in range(records)], seed=seed)
        started = [time.process_time()]
        for _ in range(2):
            summarise([folder])
            started.append(time.process_time())
        return min(after - before for before, after in pairwise(started))

    small, large = seconds(500), seconds(1000)
    assert large < 4 * small

"""From directories to a summary: groups, tables, views."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from compare.made_runs import study_of, write_run

from stepwell.compare.report.forest import verdict_of
from stepwell.compare.summary import summarise
from stepwell.core.errors import StepwellError

PNG = b"\x89PNG\r\n\x1a\n"


def falling(speed: float, seed: int) -> list[float]:
    return [(1 + 0.02 * seed) / (1 + speed * t) for t in range(30)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return study_of(
        tmp_path / "runs", {"uniform": lambda s: falling(1.0, s), "neyman": lambda s: falling(1.5, s)}
    )


def test_the_table_is_what_the_directories_say(folder: Path) -> None:
    summary = summarise([folder])
    (workload,) = summary.workloads
    assert workload.name == "fashion16"
    rows = {row[0]: dict(zip(workload.table.columns, row, strict=True)) for row in workload.table.rows}
    ends = [falling(1.5, seed)[-1] for seed in range(3)]
    assert rows["neyman"]["simple loss"] == pytest.approx(sum(ends) / 3)
    assert rows["neyman"]["against"] == "uniform"
    assert rows["neyman"]["seeds"] == 3
    assert rows["neyman"]["images for same loss"].mean == pytest.approx(2 / 3, abs=0.02)
    distances = [10 * falling(1.5, seed)[-1] for seed in range(3)]
    assert rows["neyman"]["Fréchet distance"] == pytest.approx(sum(distances) / 3)
    assert rows["uniform"]["against"] is None
    assert summary.verdict[0].startswith("neyman needs 0.6")
    plain = json.loads(json.dumps(summary.plain()))
    assert plain["metrics"][0] == {"key": "objective/simple", "name": "simple loss"}
    assert plain["workloads"][0]["table"]["rows"] == workload.table.text_rows()


def test_settings_that_differ_make_workloads(folder: Path) -> None:
    for seed in range(3):
        for method, speed in (("uniform", 1.0), ("neyman", 1.2)):
            path = folder / "cosine" / f"{method}-{seed}"
            write_run(path, falling(speed, seed), method, seed, process="cosine")
    summary = summarise([folder])
    assert sorted(workload.name for workload in summary.workloads) == ["cosine", "linear"]
    assert summary.overall is not None
    assert summary.overall.columns[:4] == ("method", "against", "judged by", "all workloads")
    (row,) = summary.overall.rows
    assert row[3].mean == pytest.approx(math.sqrt(2 / 3 / 1.2), abs=0.02)
    assert summary.verdict[0].startswith("Over 2 workloads neyman needs 0.75")
    by_method = {profile.method: profile for profile in summary.profiles}
    assert by_method["neyman"].shares[0] == 1.0, "the best everywhere"
    assert by_method["uniform"].shares[0] == 0.0
    assert by_method["uniform"].shares[-1] == 1.0


def test_a_study_says_who_is_judged_by_what(folder: Path) -> None:
    for seed in range(3):
        write_run(folder / f"other-{seed}", falling(2.0, seed), "min-snr", seed)
    content = {
        "name": "mine",
        "methods": ["min-snr", "neyman", "uniform"],
        "against": {"neyman": "min-snr"},
        "judged_by": {"neyman": "bound"},
    }
    (folder / "study.json").write_text(json.dumps(content))
    summary = summarise([folder])
    (workload,) = summary.workloads
    rows = {row[0]: row for row in workload.table.rows}
    assert rows["neyman"][1:3] == ("min-snr", "bound")
    assert [view.name for view in workload.methods] == content["methods"]
    assert summary.title == "mine"


def test_runs_that_are_not_finished_are_shown_and_not_scored(folder: Path) -> None:
    run = folder / "neyman" / "2"
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-5]))
    summary = summarise([folder])
    assert summary.running
    assert summary.verdict[0].startswith("No verdict: 2 seeds")
    assert any("1 run is not finished" in note for note in summary.notes)
    assert sum(not view.finished for view in summary.workloads[0].runs) == 1
    table = summary.workloads[0].table
    cells = dict(zip(table.columns, next(row for row in table.rows if row[0] == "neyman"), strict=True))
    ends = [falling(1.5, seed)[-1] for seed in range(2)]
    assert (cells["seeds"], cells["simple loss"]) == (2, pytest.approx(sum(ends) / 2))
    bands = next(view.bands for view in summary.workloads[0].methods if view.name == "neyman")
    assert bands[0] == pytest.approx(sum(ends) / 2, rel=1e-3)


def test_a_study_has_not_ended_before_all_its_runs_have(folder: Path) -> None:
    assert summarise([folder]).state == "ended"
    content = {"workloads": {"fashion16": {}}, "methods": ["uniform", "neyman"], "seeds": [0, 1, 2, 3]}
    (folder / "study.json").write_text(json.dumps(content))
    summary = summarise([folder])
    assert summary.state == "running"
    assert any("6 of the study's 8 runs" in note for note in summary.notes)


def test_a_method_alone_leads_with_its_loss(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [1.0, 0.5, 0.25], steps=30)
    assert summarise([tmp_path]).verdict == ("uniform on fashion16: simple loss 0.25000 at step 20 of 30.",)
    write_run(tmp_path / "other", [1.0, 0.5, 0.4, 0.3], seed=1)
    write_run(tmp_path / "third", [1.0, 0.5, 0.4, 0.2], seed=2)
    assert summarise([tmp_path]).verdict == (
        "uniform on fashion16: simple loss 0.25000 after 30 steps, mean of 2 seeds from 0.20000 to 0.30000.",
    ), "of finished runs"


def test_the_answer_has_a_row_for_every_method_the_best_first(folder: Path) -> None:
    for seed in range(3):
        write_run(folder / f"p2-{seed}", falling(0.5, seed), "p2", seed)
        write_run(folder / f"min-snr-{seed}", falling(2.0, seed), "min-snr", seed)
    write_run(folder / "speed-0", falling(1.0, 0)[:-9], "speed", 0, steps=290)
    (folder / "study.json").write_text(json.dumps({"against": {"min-snr": "neyman"}}))
    (answer,) = summarise([folder]).answers
    assert answer.measure == "images for the same simple loss, over uniform's"
    assert [row.method for row in answer.rows] == ["neyman", "min-snr", "uniform", "p2", "speed"]
    notes = {row.method: row.note for row in answer.rows if row.note}
    assert notes == {
        "min-snr": "simple loss, over neyman's",
        "uniform": "baseline",
        "speed": "not compared",
    }
    by_method = {row.method: verdict_of(row.ratio) for row in answer.rows}
    assert (by_method["neyman"], by_method["p2"], by_method["uniform"]) == ("better", "worse", "")


def test_long_curves_are_thinned_and_keep_their_ends(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [1 / (1 + t) for t in range(1000)])
    (view,) = summarise([tmp_path]).workloads[0].runs
    assert len(view.images) == 120
    assert (view.steps[0], view.steps[-1]) == (0, 9990)


def test_sheets_are_shown_at_equal_time(folder: Path) -> None:
    for method in ("uniform", "neyman"):
        samples = folder / method / "0" / "samples"
        samples.mkdir()
        for step in (100, 290, 12345):
            (samples / f"step-{step:09d}.png").write_bytes(PNG + str(step).encode())
    views = summarise([folder]).workloads[0].methods
    for view in views:
        assert view.sheet is not None
        assert view.sheet.uri.startswith("data:image/png;base64,")
        assert "step 290, 145 training seconds" in view.sheet.caption


@pytest.mark.parametrize("how", ["link", "folder of links", "no png"])
def test_only_pngs_of_the_run_itself_are_shown(folder: Path, tmp_path: Path, how: str) -> None:
    name, samples = "step-000000290.png", folder / "uniform" / "0" / "samples"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / name).write_bytes(PNG + b"secret")
    if how == "folder of links":
        samples.symlink_to(outside)
    else:
        samples.mkdir()
    if how == "link":
        (samples / name).symlink_to(outside / name)
    elif how == "no png":
        (samples / name).write_bytes(b"key")
    assert all(view.sheet is None for view in summarise([folder]).workloads[0].methods)


def test_an_empty_folder_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(StepwellError, match=r"there is no run to report on in [\s\S]*it has no recipe.json"):
        summarise([tmp_path])
    with pytest.raises(StepwellError, match="there is no directory"):
        summarise([tmp_path / "nothing"])


@pytest.mark.parametrize("content", ['{"methods": 3}', "[]", "{", '{"metric": 1}', '{"metric": "bound"}'])
def test_foreign_study_files_and_missing_metrics_do_no_harm(folder: Path, content: str) -> None:
    (folder / "study.json").write_text(content)
    for run in folder.rglob("metrics.jsonl"):
        run.write_text(run.read_text().replace("objective/bound", "objective/other"))
    summary = summarise([folder])
    assert [metric.title for metric in summary.metrics] == ["simple loss", "min-snr loss"]
    assert summary.verdict


def test_other_intervals_and_lengths_are_said_and_compared_where_both_have_them(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"uniform-{seed}", falling(1.0, seed), "uniform", seed)
        longer = [*falling(1.0, seed), *[1e-3] * 30]
        write_run(tmp_path / f"neyman-{seed}", longer, "neyman", seed)
    summary = summarise([tmp_path])
    (row,) = [row for row in summary.workloads[0].table.rows if row[0] == "neyman"]
    cells = dict(zip(summary.workloads[0].table.columns, row, strict=True))
    assert cells["end"].mean == 1, "where the shorter run ends"
    assert cells["distance"] is None
    assert any("compared until step 290" in note for note in summary.notes)
    assert summary.verdict[0].startswith("No method surely needs fewer images")


def test_runs_without_common_evaluations_are_not_compared(tmp_path: Path) -> None:
    for seed in range(3):
        for method, values in {"uniform": falling(1.0, seed), "neyman": falling(3.0, seed)}.items():
            write_run(tmp_path / method / str(seed), values, method, seed)
        path = tmp_path / "neyman" / str(seed) / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for record in lines[2:]:
            record["step"] += 5
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    summary = summarise([tmp_path])
    assert summary.verdict[0].startswith("No verdict")
    assert any("uniform are not compared" in note and "evaluate_every=" in note for note in summary.notes)


LOSSES = {"left": 0.62, "left_error": 0.02, "least": 0.58, "least_error": 0.02}
MEASURED = {
    "critical_batch": 107.2,
    "critical_batch_low": 78.0,
    "images": 0.71,
    "images_low": 0.65,
    "images_high": 0.78,
    "best_images": 0.66,
    "best_images_low": 0.6,
    "best_images_high": 0.73,
}


def test_a_single_run_tells_its_forecast_in_a_sentence(tmp_path: Path) -> None:
    write_run(tmp_path / "old", falling(1.0, 0))
    assert not any("Forecast" in sentence for sentence in summarise([tmp_path / "old"]).verdict)
    write_run(tmp_path / "run", falling(1.0, 0), forecast={**LOSSES, **MEASURED, "critical_batch_high": None})
    summary = summarise([tmp_path / "run"])
    assert summary.verdict[1] == (
        "Forecast: expect 0.71 (0.65 to 0.78) of the images that the process's own timesteps need at "
        "batch 10, 0.66 (0.60 to 0.73) at best: these timesteps leave 0.62 (0.58 to 0.66) of the "
        "gradient's variance, the best 0.58 (0.54 to 0.62), and the critical batch is 107 (above 78)."
    )
    assert summary.workloads[0].forecasts is None


def test_forecasts_stand_beside_what_was_measured(tmp_path: Path) -> None:
    for seed in range(3):
        own = {**LOSSES, **MEASURED, "critical_batch": 100.0 + seed, "images": 0.7 + 0.01 * seed}
        write_run(tmp_path / f"neyman-{seed}", falling(1.5, seed), "neyman", seed, forecast=own)
        write_run(tmp_path / f"uniform-{seed}", falling(1.0, seed), "uniform", seed)
    changed = {key: value for key, value in LOSSES.items() if not key.startswith("left")}
    write_run(tmp_path / "p2-0", falling(1.0, 0), "p2", 0, forecast=changed)
    (workload,) = summarise([tmp_path]).workloads
    assert workload.forecasts is not None
    text = {row[0]: row[1:] for row in workload.forecasts.text_rows()}
    assert set(text) == {"neyman", "p2"}, "uniform's records are older"
    left, least, critical, images, best, measured = text["neyman"]
    assert (left, least, best) == ("0.62 (0.62 to 0.62)", "0.58 (0.58 to 0.58)", "0.66 (0.66 to 0.66)")
    assert critical.startswith("101 (9")
    assert images.startswith("0.71 (0.6")
    assert measured == str(workload.table.rows[0][3] or workload.table.rows[1][3])
    assert text["p2"][:2] == ["changes the objective", "0.58 (0.54 to 0.62)"]
    assert text["p2"][2:5] == ["", "", ""]
    assert json.loads(json.dumps(summarise([tmp_path]).plain()))["workloads"][0]["forecasts"]["rows"]

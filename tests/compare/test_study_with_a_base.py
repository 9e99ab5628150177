"""A study whose runs all start from one that it trains first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from compare.made_runs import write_run

from stepwell.cli.main import main
from stepwell.compare.results import read_all
from stepwell.compare.study import load_study
from stepwell.compare.trials import base_trials, final_trials, require_sound
from stepwell.compare.tuning import tuned
from stepwell.recipes.schema import BadRecipe

STUDY = """
methods = ["uniform"]
seeds = [0]
[base]
recipe = "fashion16"
only_classes = "5,7"
steps = 3
[workload.whole]
recipe = "fashion16"
[settings]
model = "micro"
only_classes = "0,1"
steps = 2
batch = 4
evaluate_every = 1
evaluate_images = 4
bands = 2
[effort]
generated = 0
bits_images = 2
bits_timesteps = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "mine.toml").write_text(STUDY)
    return str(tmp_path / "mine.toml")


def test_the_shipped_study_fine_tunes_whole_and_by_adapters(tmp_path: Path) -> None:
    study = load_study("finetune")
    require_sound(study)
    (base,) = base_trials(study, tmp_path)
    assert (base.recipe.only_classes, base.recipe.steps, base.recipe.start) == ("5,7,8,9", 600, "")
    trials = [*tuned(study, tmp_path, None).trials, *final_trials(study, tmp_path, None)]
    assert {trial.recipe.start for trial in trials} == {str(tmp_path / "base")}
    assert {trial.recipe.lora for trial in trials} == {0, 4}
    assert {trial.recipe.only_classes for trial in trials} == {"0,1,2,3,4,6"}
    assert (base.recipe.model, base.recipe.process) == (trials[0].recipe.model, trials[0].recipe.process)


def test_each_workload_chooses_its_learning_rates(tmp_path: Path) -> None:
    # A third of 120 steps is 40, where the curves below end.
    study = load_study("finetune", ["methods=uniform,min-snr", "steps=120"])
    short = tuned(study, tmp_path, None).trials
    assert len({trial.recipe.out for trial in short}) == len(short) == 2 * 2 * 3
    for trial in short:
        recipe = asdict(trial.recipe)
        best = {"whole": 1e-3, "lora": 1.6e-2}[trial.workload]
        curve = [3.0, 2.0, 1.5, 1.2, 0.1 if trial.recipe.lr == best else 1.0]
        write_run(trial.folders[0], curve, recipe.pop("method"), recipe.pop("seed"), **recipe)
    chosen = tuned(study, tmp_path, None).of(study)
    assert chosen.rates["whole/uniform"] == chosen.rates["whole/min-snr"] == 1e-3
    assert set(chosen.edges) == set(chosen.rates), "the best rate is the first or the last of three"
    rates = {(trial.workload, trial.recipe.lr) for trial in final_trials(chosen, tmp_path, None)}
    assert rates == {("whole", 1e-3), ("lora", 1.6e-2)}


def test_the_base_has_what_it_does_not_say_from_the_settings(file: str, tmp_path: Path) -> None:
    (base,) = base_trials(load_study(file, ["process=cosine", "data=other.npz"]), tmp_path)
    assert (base.recipe.model, base.recipe.process, base.recipe.steps) == ("micro", "cosine", 3)
    assert base.recipe.only_classes == "5,7"


def test_another_start_takes_the_place_of_the_base(file: str, tmp_path: Path) -> None:
    study = load_study(file, [f"from={tmp_path / 'nothing'}"])
    assert base_trials(study, tmp_path) == []
    with pytest.raises(BadRecipe, match="there is nothing at"):
        require_sound(study)


def test_mistakes_of_the_base_are_told_with_the_others(file: str, tmp_path: Path) -> None:
    Path(file).write_text(STUDY.replace("steps = 3", "steps = -3").replace("\nsteps = 2", "\nstepps = 2"))
    with pytest.raises(BadRecipe) as caught:
        require_sound(load_study(file))
    assert "base: steps must be above 0" in str(caught.value)
    assert "'stepps' is not a known setting" in str(caught.value)


def test_the_base_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{}")
    write_run(tmp_path / "base", [3, 2, 1])
    write_run(tmp_path / "whole" / "uniform" / "0", [3, 2, 1])
    runs, left_out = read_all([tmp_path])
    assert [run.path for run in runs] == [tmp_path / "whole" / "uniform" / "0"]
    assert left_out == []


@pytest.mark.full
def test_it_is_trained_once_and_all_others_start_from_it(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["compare", file, f"out={out}", "--workers", "1"]) == 0
    recipe = json.loads((out / "whole" / "uniform" / "0" / "recipe.json").read_text())
    assert recipe["start"] == str(out / "base")
    study = load_study(file)
    (trial,) = final_trials(study, out, None)
    assert trial.recipe.start_digest == recipe["start_digest"] != ""
    assert trial.outcome() is not None
    before = (out / "base" / "metrics.jsonl").stat().st_mtime_ns
    assert main(["compare", file, f"out={out}", "--workers", "1"]) == 0
    assert (out / "base" / "metrics.jsonl").stat().st_mtime_ns == before

"""Studies as files and as words; every mistake at once."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from compare.made_runs import write_run

from stepwell.compare.study import Study, load_study
from stepwell.compare.trials import final_trials, require_sound
from stepwell.compare.tuning import tuned
from stepwell.core.errors import StepwellError
from stepwell.recipes.method import study_files
from stepwell.recipes.schema import BadRecipe
from stepwell.runs.directory import RECIPE


def test_words_make_a_study(tmp_path: Path) -> None:
    study = load_study(
        "fashion16",
        ["methods=uniform,min-snr,beta-policy:credit=alignment,floor=0.3,neyman", "seeds=2", "batch=8"],
    )
    assert study.methods == ("uniform", "min-snr", "beta-policy:credit=alignment,floor=0.3", "neyman")
    assert study.seeds == (0, 1)
    assert study.settings == {"batch": 8}
    require_sound(study)
    trials = final_trials(study, tmp_path, None)
    assert len(trials) == 8
    assert {trial.recipe.batch for trial in trials} == {8}
    assert [trial.recipe.seed for trial in trials] == [0] * 4 + [1] * 4, "seed by seed: noise hits all alike"
    assert trials[0].recipe.method != trials[4].recipe.method, "another method comes first each time"
    assert len({trial.recipe.out for trial in trials}) == 8


def test_a_file_makes_a_study(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        """
methods = ["uniform", "neyman+min-snr", "min-snr"]
seeds = [3, 4, 5]
metric = "bound"
[workload.short]
recipe = "fashion16"
steps = 100
[workload.long]
recipe = "fashion16"
steps = 200
[against]
"neyman+min-snr" = "min-snr"
[judged_by]
"min-snr" = "min-snr"
[tune]
lr = [1e-3, 2e-3]
"""
    )
    study = load_study(str(tmp_path / "mine.toml"), ["model=micro"])
    assert (study.name, study.seeds, study.baseline) == ("mine", (3, 4, 5), "uniform")
    assert study.against == {"neyman+min-snr": "min-snr"}
    assert study.command == f"stepwell compare {tmp_path / 'mine.toml'} model=micro"
    assert study.metric_of("min-snr").key == "objective/min-snr"
    assert study.metric_of("uniform").weighting == "vlb"
    short = tuned(study, tmp_path, None)
    assert len(short.trials) == 12
    assert {trial.recipe.steps for trial in short.trials} == {100}
    assert {trial.recipe.seed for trial in short.trials} == {100, 101}
    assert short.rates == {}
    chosen = replace(study, rates={"uniform": 0.5})
    assert {trial.recipe.lr for trial in final_trials(chosen, tmp_path, None)} == {0.5, 2e-3}


@pytest.mark.parametrize("name", sorted(study_files()))
def test_shipped_studies_are_sound(name: str) -> None:
    study = load_study(name, ["data=/some/folder"] if "data=" in study_files()[name].read_text() else [])
    require_sound(study)
    assert len(study.seeds) >= 3, "a shipped study can have a verdict"


def test_some_methods_of_a_shipped_study_can_be_asked_for() -> None:
    study = load_study("table1", ["methods=min-snr,alignment"])
    require_sound(study)
    assert study.judged_by == {"min-snr": "min-snr", "alignment": "bound"}
    assert study.against == {}
    assert study.baseline == "min-snr", "the first, where uniform is left out"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["seeds=0"], "seeds must be"),
        (["seeds=x"], "seeds must be"),
        (["methods="], "methods must be names"),
        (["methods=uniform,uniform"], "given twice"),
        (["methods=uniform,neyman", "baseline=min-snr"], "baseline: 'min-snr' is not among the methods"),
        (["tune=1e-3"], "at least two learning rates"),
        (["tune=1e-3,-2"], "at least two learning rates"),
        (["nonsense"], "not of the form key=value"),
        (["against=3"], "against must be a table"),
    ],
)
def test_mistakes_are_told(words: list[str], part: str) -> None:
    with pytest.raises(BadRecipe, match=part):
        load_study("fashion16", words)


def test_all_mistakes_of_all_recipes_come_at_once() -> None:
    study = load_study("fashion16", ["methods=uniform,neymann,min-snr", "batch=-1", "colour=3"])
    with pytest.raises(BadRecipe) as caught:
        require_sound(study)
    text = str(caught.value)
    assert "'neymann' is not a known method" in text
    assert "batch must be above 0" in text
    assert "'colour' is not a known setting" in text


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StepwellError, match=r"'fashion61' is not a known study or workload.*fashion16"):
        load_study("fashion61")
    with pytest.raises(StepwellError, match="there is no file"):
        load_study(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("methods = [")
    with pytest.raises(StepwellError, match="not valid TOML"):
        load_study(str(tmp_path / "bad.toml"))
    (tmp_path / "odd.toml").write_text('methods = ["uniform"]\nworkloads = ["fashion16"]\nmetods = 3\n')
    with pytest.raises(BadRecipe, match="Did you mean 'methods'"):
        load_study(str(tmp_path / "odd.toml"))


def test_nothing_is_tuned_on_what_is_reported() -> None:
    study = load_study("table1", ["seeds=[0, 100]"])
    with pytest.raises(BadRecipe, match="seed 100 is one that is reported"):
        require_sound(study)


def test_an_objective_that_the_process_lacks_is_refused_before_any_work() -> None:
    study = load_study("fashion16", ["methods=uniform,logit-normal", "metric=bound", "process=flow"])
    with pytest.raises(BadRecipe, match=r"variational bound .* flow does not have"):
        require_sound(study)


def test_a_weighting_that_learns_is_a_method_and_no_metric() -> None:
    require_sound(load_study("fashion16", ["methods=uniform,uncertainty"]))
    study = load_study("fashion16", ["methods=uniform,uncertainty", "metric=uncertainty"])
    with pytest.raises(BadRecipe, match=r"uncertainty learns its weights.*measure by a fixed weighting"):
        require_sound(study)


def test_a_run_from_before_a_setting_existed_counts_where_its_default_is_asked_for(tmp_path: Path) -> None:
    study = load_study("fashion16", ["methods=uniform", "seeds=1", "steps=40"])
    (trial,) = final_trials(study, tmp_path, None)
    known = asdict(trial.recipe)
    more = {key: value for key, value in known.items() if key not in ("method", "seed")}
    write_run(tmp_path / "fashion16/uniform/0", [4, 3, 2, 1, 0.5], **more)
    path = tmp_path / "fashion16/uniform/0" / RECIPE
    path.write_text(json.dumps({key: value for key, value in known.items() if key != "solver"}))
    assert trial.outcome() is not None
    (other,) = final_trials(
        load_study("fashion16", ["methods=uniform", "seeds=1", "steps=40", "solver=ddpm"]), tmp_path, None
    )
    assert other.outcome() is None


def test_without_the_baseline_the_reference_is_compared_with() -> None:
    assert Study().baseline_among(["auto", "uniform"]) == "uniform"
    assert Study().baseline_among(["auto", "reference"]) == "reference"
    assert Study().baseline_among(["auto", "neyman"]) == "auto"


def test_the_last_value_of_a_part_counts() -> None:
    study = load_study(
        "fashion16", ["methods=uniform,auto", "tune=1e-3,2e-3", "methods=neyman", "tune=1e-4,1e-3"]
    )
    assert tuple(study.methods) == ("neyman",)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("share", "0"),
        ("widen", "-1"),
        ("evaluations", "0"),
        ("least_steps", "0"),
        ("tie", "1"),
        ("caution", "nan"),
    ],
)
def test_every_part_of_tune_says_what_it_must_be(part: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    study = 'methods = ["uniform"]\n[workload.w]\nrecipe = "fashion16"\n[tune]\nlr = [1e-3, 2e-3]\n'
    path.write_text(f"{study}{part} = {value}\n")
    with pytest.raises(BadRecipe, match=f"tune: {part} must .*, not {value}"):
        load_study(str(path))

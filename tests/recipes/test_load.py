"""A recipe is checked as a whole, before any work."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from stepwell.catalogue.find import find, kinds_of
from stepwell.catalogue.spec import Spec
from stepwell.core.errors import UnknownName
from stepwell.core.reading import Unreadable
from stepwell.recipes.load import load
from stepwell.recipes.method import first_words, method_files, method_names, parse_method, workload_files
from stepwell.recipes.schema import SETTINGS, BadRecipe, Recipe


def test_five_mistakes_are_reported_at_once() -> None:
    words = ["lr=-1", "bach=64", "steps=many", "method=min-srn", "process=linaer"]
    with pytest.raises(BadRecipe) as caught:
        load("fashion16", words)
    assert len(caught.value.mistakes) == 5
    text = str(caught.value)
    for said in (
        "5 mistakes in fashion16.toml",
        "lr must be above 0, not -1",
        "Did you mean 'batch'?",
        "steps must be a whole number, not 'many'",
        "Did you mean 'min-snr'?",
        "Did you mean 'linear'?",
    ):
        assert said in text


def test_the_last_value_of_a_setting_counts() -> None:
    """So that scripts can add words to their common ones."""
    assert load("fashion16", ["steps=10", "lr=1e-4", "steps=20"]).recipe.steps == 20
    assert load("fashion16", ["steps=10"], {"steps": 20}).recipe.steps == 10


@pytest.mark.parametrize("name", sorted(workload_files()))
def test_every_shipped_workload_is_sound(name: str) -> None:
    load(name, ["data=/some/folder"])


def test_the_folder_workload_asks_for_its_folder() -> None:
    with pytest.raises(BadRecipe, match="data=PATH is to be filled in"):
        load("images")
    assert load("images", ["data=/some/folder"]).recipe.data == "/some/folder"


@pytest.mark.parametrize("name", sorted(method_files()))
def test_every_shipped_method_is_sound_and_says_what_it_is(name: str) -> None:
    load("fashion16", [f"method={name}"])
    assert len(first_words(method_files()[name])) > 20


def test_every_sampler_and_weighting_is_a_method() -> None:
    for name in method_names():
        if name not in ("table", "over-steps", "none"):
            own = next((find(kind, name).process for kind in kinds_of(name)), None)
            process = "vp" if name == "likelihood" else own or "linear"
            load("fashion16", [f"method={name}", f"process={process}"])


def test_methods_combine_a_sampler_and_a_weighting() -> None:
    method = parse_method("logit-normal:mean=0.5,stratified=true+min-snr:gamma=3")
    assert method.sampler == Spec("sampler", "logit-normal", {"mean": 0.5, "stratified": True})
    assert method.weighting == Spec("weighting", "min-snr", {"gamma": 3})
    assert str(parse_method("p2").sampler) == "reference"
    assert str(parse_method("speed").weighting) == "speed", "the method is sampler and weighting"
    assert str(parse_method("speed+none").weighting) == "none", "the sampler alone"
    with pytest.raises(UnknownName, match="names two samplers"):
        parse_method("uniform+laplace")
    with pytest.raises(UnknownName, match="means two things"):
        parse_method("log-normal")


def test_values_are_read_in_the_type_of_their_setting() -> None:
    recipe = load("fashion16", ["lr=1", "clip=none", "labels=true", "seconds=30", "data=123"]).recipe
    assert (recipe.lr, recipe.clip, recipe.labels, recipe.seconds, recipe.data) == (
        1.0,
        None,
        True,
        30.0,
        "123",
    )
    with pytest.raises(BadRecipe, match="labels must be true or false, not 1"):
        load("fashion16", ["labels=1"])


def test_files_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('data = "fashion16"\nsteps = 7\n')
    assert load(str(own)).recipe.steps == 7
    own.write_text("steps = [")
    with pytest.raises(Unreadable, match="not valid TOML"):
        load(str(own))
    with pytest.raises(Unreadable, match="there is no file"):
        load(str(tmp_path / "none.toml"))
    with pytest.raises(UnknownName, match="Did you mean 'fashion16'"):
        load("fashion61")


def test_every_setting_has_a_sentence() -> None:
    assert set(SETTINGS) == {f.name for f in fields(Recipe)}
    assert all(len(setting.meaning) > 5 for setting in SETTINGS.values())


@pytest.mark.parametrize(
    "word",
    ["batch=0", "dropout=1", "ema=2", "beta2=1", "keep=0", "seconds=-3", "model=huge", "optimizer=sgd",
     "precision=fp8", "ema_kind=linear", "method=vlb+min-snr", "process=flow:shift=0", "words",
     "tracker=tensorbord", "tracker=aim"],
)  # fmt: skip
def test_values_that_cannot_work(word: str) -> None:
    with pytest.raises(BadRecipe, match="1 mistake in"):
        load("fashion16", [word])


def test_a_weighting_without_meaning_for_the_process_is_a_mistake() -> None:
    with pytest.raises(BadRecipe, match="which flow does not have"):
        load("fashion16", ["process=flow", "method=vlb"])


@pytest.mark.parametrize("words", [["guidance=2"], ["guidance=2", "labels=true", "label_dropout=0"]])
def test_guidance_that_could_not_work_is_refused_before_training(words: list[str]) -> None:
    with pytest.raises(BadRecipe, match="labels=true or captions=true, and label_dropout above 0"):
        load("fashion16", words)
    assert load("fashion16", ["guidance=2", "labels=true"]).recipe.guidance == 2

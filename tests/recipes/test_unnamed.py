"""Settings that follow others where nobody named them."""

from __future__ import annotations

from pathlib import Path

from stepwell.recipes.load import load


def test_a_short_run_warms_up_and_evaluates_in_proportion() -> None:
    recipe = load("images", ["data=fashion16", "steps=200"]).recipe
    assert (recipe.warm_up_steps, recipe.evaluate_every, recipe.checkpoint_every) == (20, 10, 50)
    assert (recipe.sample_every, recipe.record_every) == (50, 10)


def test_what_is_named_stays() -> None:
    recipe = load("images", ["data=fashion16", "steps=200", "warm_up_steps=150", "evaluate_every=0"]).recipe
    assert (recipe.warm_up_steps, recipe.evaluate_every) == (150, 0)


def test_a_workload_as_it_is_keeps_its_own_values() -> None:
    plan = load("images", ["data=fashion16", "lr=1e-3"])
    assert (plan.recipe.warm_up_steps, plan.recipe.evaluate_every) == (500, 2000)
    assert plan.followed_from == {}


def test_a_long_run_is_evaluated_twenty_times_and_warms_up_no_longer() -> None:
    recipe = load("fashion16", ["steps=100000"]).recipe
    assert (recipe.warm_up_steps, recipe.evaluate_every, recipe.record_every) == (100, 5000, 50)


def test_values_in_a_file_of_the_users_are_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("steps = 100\nwarm_up_steps = 90\n")
    recipe = load(str(file)).recipe
    assert (recipe.warm_up_steps, recipe.evaluate_every) == (90, 5)


def test_an_optimizer_brings_the_settings_of_its_authors() -> None:
    assert load("fashion16", ["optimizer=adamw"]).recipe.lr == 2e-3
    assert load("fashion16", ["optimizer=lion"]).recipe.beta2 == 0.99
    assert load("fashion16", ["optimizer=prodigy"]).recipe.lr == 1.0
    assert load("fashion16", ["optimizer=prodigy", "lr=0.5"]).recipe.lr == 0.5

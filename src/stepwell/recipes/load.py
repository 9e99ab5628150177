"""Where plans come from: a shipped workload or TOML file with key=value words, or a run's recipe.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepwell.catalogue.find import canonical
from stepwell.core.errors import StepwellError, shortened, unknown
from stepwell.core.reading import Absent, object_of, place, toml_of
from stepwell.recipes.method import workload_files
from stepwell.recipes.plan import Plan, resolve
from stepwell.recipes.schema import Recipe, read_word
from stepwell.runs.directory import RECIPE
from stepwell.train import checkpoint


def load(
    workload: str,
    words: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    *,
    data_needed: bool = True,
) -> Plan:
    """The plan of a shipped workload or of a TOML file, changed by settings and by key=value words."""
    path = place(workload) if workload.endswith(".toml") else workload_files().get(canonical(workload))
    if path is None:
        raise unknown("workload", workload, workload_files())
    mistakes: list[str] = []
    values = {**toml_of(path), **(settings or {})}
    for word in words:
        try:
            key, value = read_word(word)
        except StepwellError as error:
            mistakes.append(str(error))
        else:
            values[key] = value
    source = f"{path.name} with {shortened(' '.join(words))}" if words else path.name
    return resolve(values, mistakes, source, data_needed=data_needed)


def saved_plan(run: Path) -> Plan:
    """The plan that a run directory was trained with."""
    return resolve(_saved(run), source=str(run / RECIPE))


def saved_recipe(run: Path) -> Recipe | None:
    """The settings that a run directory was trained with, unchecked; None if no file has them."""
    known = (run / RECIPE).is_file() or recipe_in_checkpoint(run) is not None
    return Recipe.from_saved(_saved(run), str(run / RECIPE)) if known else None


def recipe_in_checkpoint(run: Path) -> dict[str, Any] | None:
    """The copy of a run's settings that its newest checkpoint has; older versions wrote none."""
    stored, _ = checkpoint.newest(run / "checkpoints")
    recipe = None if stored is None else stored.info.get("recipe")
    return recipe if isinstance(recipe, dict) else None


def _saved(run: Path) -> dict[str, Any]:
    """The settings in recipe.json, or if that is gone or damaged, their copy in a checkpoint."""
    try:
        return _in_recipe_file(run)
    except StepwellError:
        copy = recipe_in_checkpoint(run)
        if copy is None:
            raise
        return copy


def _in_recipe_file(run: Path) -> dict[str, Any]:
    try:
        return object_of(run / RECIPE)
    except Absent:
        raise StepwellError(f"{run} is not a run: it has no {RECIPE}. Train one with out={run}.") from None

"""Where plans come from: a shipped workload or TOML file with key=value words, or a run's recipe.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.catalogue.find import canonical
from stepwell.core.errors import StepwellError, shortened, unknown
from stepwell.core.reading import Absent, object_of, place, toml_of
from stepwell.recipes.method import workload_files
from stepwell.recipes.plan import Begin, Plan, resolve
from stepwell.recipes.saved_network import process_of_start, told_by_start
from stepwell.recipes.schema import Recipe, read_words
from stepwell.runs.directory import RECIPE, safe_name


def load(
    workload: str,
    words: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    *,
    data_needed: bool = True,
    begin: Begin | None = None,
) -> Plan:
    """The plan of a shipped workload, a TOML file or a run, changed by settings and by key=value words.

    Settings that neither these nor a file of the user's name may follow others (`recipes/unnamed.py`), or the
    network that from= names (`recipes/saved_network.py`).
    """
    mistakes: list[str] = []
    name, read, own = _source(workload)
    changes = {**(settings or {}), **read_words(words, mistakes)}
    source = f"{name} with {shortened(' '.join(words))}" if words else name
    settings, named = {**read, **changes}, {*changes, *(read if own else ())}
    settings |= told_by_start(settings, named)
    settle = partial(process_of_start, named=named)
    plan = resolve(settings, mistakes, source, data_needed=data_needed, begin=begin, settle=settle)
    return plan.following(named)


def _source(workload: str) -> tuple[str, dict[str, Any], bool]:
    """What a workload is called, its settings, and whether they are the user's own."""
    own = workload.endswith(".toml")
    path = place(workload) if own else workload_files().get(canonical(workload))
    if path is not None:
        return path.name, toml_of(path), own
    run = place(workload)
    if (run / RECIPE).is_file():
        return str(run / RECIPE), {**_saved(run), "out": str(run)}, True
    raise unknown("workload", workload, workload_files())


def saved_plan(run: Path) -> Plan:
    """The plan that a run directory was trained with."""
    return resolve(_saved(run), source=str(run / RECIPE))


def saved_recipe(run: Path) -> Recipe | None:
    """The settings that a run directory was trained with, unchecked; None if no file has them."""
    known = (run / RECIPE).is_file() or recipe_in_checkpoint(run) is not None
    return Recipe.from_saved(_saved(run), str(run / RECIPE)) if known else None


def recipe_in_checkpoint(run: Path) -> dict[str, Any] | None:
    """The copy of a run's settings that its newest checkpoint has; older versions wrote none."""
    # Settings are checked before torch is imported, and this needs it.
    from stepwell.train import checkpoint

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


def with_out(plan: Plan, workload: str) -> Plan:
    """The plan with a run directory of its own, if none was named."""
    recipe = plan.recipe
    if recipe.out:
        path = place(recipe.out)
        return plan.with_settings(out=str(path)) if recipe.out.startswith("~") else plan
    name = f"{Path(workload).stem}-{recipe.method}-{recipe.seed}"
    if recipe.start:
        name += f"-from-{Path(recipe.start).stem}"
    return plan.with_settings(out=f"runs/{safe_name(name)}")

"""Where plans come from: a shipped workload or TOML file with key=value words, or a run's recipe.json."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepwell.catalogue.find import canonical
from stepwell.catalogue.spec import split_pair
from stepwell.core.errors import StepwellError, unknown
from stepwell.recipes.method import workload_files
from stepwell.recipes.plan import Begin, Plan, resolve
from stepwell.recipes.schema import BadRecipe, Recipe
from stepwell.runs.directory import RECIPE


def load(
    workload: str,
    words: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    *,
    data_needed: bool = True,
    begin: Begin | None = None,
) -> Plan:
    """The plan of a shipped workload, a TOML file or a run, changed by settings and by key=value words.

    Settings that neither these nor a file of the user's name may follow others (`recipes/unnamed.py`).
    """
    mistakes: list[str] = []
    name, read, own = _source(workload)
    changes = dict(settings or {})
    for word in words:
        try:
            key, value = split_pair(word)
        except StepwellError as error:
            mistakes.append(str(error))
        else:
            changes[key] = value
    source = f"{name} with {' '.join(words)}" if words else name
    plan = resolve({**read, **changes}, mistakes, source, data_needed=data_needed, begin=begin)
    return plan.following({*changes, *(read if own else ())})


def _source(workload: str) -> tuple[str, dict[str, Any], bool]:
    """What a workload is called, its settings, and whether they are the user's own."""
    run = Path(workload).expanduser()
    if (run / RECIPE).is_file():
        return str(run / RECIPE), {**_saved(run), "out": str(run)}, True
    own = workload.endswith(".toml")
    path = Path(workload) if own else workload_files().get(canonical(workload))
    if path is None:
        raise unknown("workload", workload, workload_files())
    return path.name, _read(path), own


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise BadRecipe(str(path), [f"cannot read the file: {error.strerror}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise BadRecipe(str(path), [f"not valid TOML: {error}"]) from None


def saved_plan(run: Path) -> Plan:
    """The plan that a run directory was trained with."""
    return resolve(_saved(run), source=str(run / RECIPE))


def saved_recipe(run: Path) -> Recipe | None:
    """The settings that a run directory was trained with, unchecked; None if it has no recipe.json."""
    return Recipe.from_saved(_saved(run)) if (run / RECIPE).is_file() else None


def _saved(run: Path) -> dict[str, Any]:
    try:
        values = json.loads((run / RECIPE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StepwellError(f"{run} is not a run: it has no {RECIPE}. Train one with out={run}.") from None
    except OSError as error:
        raise StepwellError(f"{run / RECIPE} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise StepwellError(f"{run / RECIPE} is not valid JSON: {error}.") from None
    if not isinstance(values, dict):
        raise StepwellError(f"{run / RECIPE} is not a recipe: it holds no settings.")
    return values


def with_out(plan: Plan, workload: str) -> Plan:
    """The plan with a run directory of its own, if none was named."""
    recipe = plan.recipe
    if recipe.out:
        return plan
    name = f"{Path(workload).stem}-{recipe.method}-{recipe.seed}"
    if recipe.start:
        name += f"-from-{Path(recipe.start).stem}"
    return plan.with_settings(out=f"runs/{safe_name(name)}")


def safe_name(name: str) -> str:
    """A name as a folder can have it."""
    return "".join(letter if letter.isalnum() or letter in "-_.+" else "-" for letter in name)

"""Several runs side by side: one process and one thread each, as many at once as there are cores."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepwell.recipes.schema import Recipe
from stepwell.runs.directory import write_json

SCORE = "score.json"


def run_trials(recipes: Sequence[Recipe], effort: dict[str, Any]) -> Iterator[tuple[Recipe, str | None]]:
    """Train and score each recipe; yields them as they finish, with what went wrong if something did.

    A trial that was scored before is not run again: a study that was stopped goes on where it was.
    """
    # A fork server imports torch and diffusers once, for all trials.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stepwell.recipes.score", "stepwell.recipes.run"])
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(_trial, asdict(recipe), effort): recipe for recipe in recipes}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _trial(settings: dict[str, Any], effort: dict[str, Any]) -> str | None:
    """One run in a process of its own: None, or what went wrong."""
    import torch

    from stepwell.core.errors import StepwellError
    from stepwell.recipes.build import trained
    from stepwell.recipes.run import run_recipe
    from stepwell.recipes.score import Effort, score

    torch.set_num_threads(1)
    recipe = Recipe(**settings)
    out = Path(recipe.out)
    try:
        run_recipe(recipe, say=lambda text: None)
        if not (out / SCORE).exists():
            write_json(out / SCORE, score(trained(out), Effort(**effort)))
    except StepwellError as error:
        return str(error)
    return None


def read_score(path: Path) -> dict[str, Any]:
    """The score of a finished trial."""
    found: dict[str, Any] = json.loads((path / SCORE).read_text())
    return found

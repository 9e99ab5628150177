"""The recipe of what is analyzed, where no weights are needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.recipes.schema import Recipe


def recipe_of(what: str, settings: Sequence[str] = ()) -> Recipe:
    """Of a run directory, or of a workload with its settings."""
    from stepwell.recipes.files import workload_files
    from stepwell.recipes.load import check, load
    from stepwell.runs.directory import RECIPE

    file = Path(what) / RECIPE
    if not file.exists():
        if what.endswith(".toml") or what in workload_files():
            return load(what, settings)
        if Path(what).is_dir():
            raise StepwellError(f"{what} is not a run: it has no {RECIPE}. Train one with out={what}.")
        raise StepwellError(
            f"{what} is neither a run directory nor a workload (known: {', '.join(workload_files())})."
        )
    if settings:
        raise StepwellError(
            f"{' '.join(settings)}: settings belong to a workload, and {what} is a run: it keeps its own."
        )
    try:
        return check(json.loads(file.read_text()), source=str(file))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StepwellError(f"{file} cannot be read: {error}.") from None

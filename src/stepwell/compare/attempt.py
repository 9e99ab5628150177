"""One trial in a process of its own: train what is missing of it, score it, and say how it ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.compare.results import SCORE
from stepwell.compare.trials import Trial
from stepwell.runs.io import write_json

Ending = tuple[str, str]
"""done, failed or interrupted; and why."""


def attempt(
    settings: dict[str, Any],
    scored: bool,
    effort: dict[str, int],
    progress: Callable[[int, dict[str, Any]], None] = lambda step, values: None,
) -> Ending:
    """Train and score one run; whatever it fails with is returned, since others go on."""
    import torch

    from stepwell.core.errors import StepwellError
    from stepwell.recipes.experiment import trained
    from stepwell.recipes.plan import resolve
    from stepwell.recipes.run import run_plan
    from stepwell.recipes.score import Effort, score

    # As many as everywhere: other numbers of threads round otherwise.
    torch.set_num_threads(1)
    try:
        plan = resolve(settings)
        out = Path(plan.recipe.out)
        if Trial("", plan, (out,), scored).outcome() is not None:
            return "done", ""
        if (out / SCORE).exists():
            (out / SCORE).unlink()  # of a shorter training
        at = run_plan(plan, say=lambda text: None, progress=progress)
        if not at.finished(plan.recipe.limit):
            return "interrupted", ""
        if scored:
            found = score(trained(out), Effort(**effort))
            write_json(out / SCORE, {"step": at.step, **found})
        return "done", ""
    except StepwellError as error:
        return "failed", str(error)
    except Exception as error:  # a failed run must not stop the others, whatever it failed with
        return "failed", f"{type(error).__name__}: {error}"

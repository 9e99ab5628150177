"""The runs of a study: which ones, where, and which learning rate the short ones chose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from stepwell.compare.results import BASE, TUNING, Outcome, UnreadableRun, read
from stepwell.compare.stats import end
from stepwell.compare.study import EACH, Study
from stepwell.core.errors import StepwellError
from stepwell.recipes.load import BadRecipe, load
from stepwell.recipes.schema import Recipe
from stepwell.recipes.start import NothingToStartFrom, digest_at
from stepwell.runs.directory import RECIPE

EVALUATIONS, TUNING_EVALUATIONS = 20, 8
"""Of a run whose study does not say evaluate_every, and of the short ones that tune."""
_NOT_THE_RESULT = frozenset(
    {"out", "record_every", "keep", "samples", "sample_steps", "tracker", "workers", "start"}
)
"""Settings that may differ between a finished run and the one that is asked for."""
_DEFAULTS = asdict(Recipe())
"""What settings were before a recipe could name them."""


@dataclass(frozen=True)
class Trial:
    """One run that a study needs."""

    workload: str
    recipe: Recipe
    places: tuple[Path, ...]
    """Where it may be found: its run directory, and a thin record of it."""
    scored: bool = True
    """Whether bits and distances are measured at its end; short runs that tune have none."""

    def outcome(self) -> Outcome | None:
        """What is there of it, if it is finished and the same run."""
        for place in self.places:
            try:
                known = json.loads((place / RECIPE).read_text(encoding="utf-8"))
                found = read(place)
            except (OSError, ValueError, UnreadableRun):
                continue
            same = _result({**_DEFAULTS, **known}) == _result(asdict(self.recipe))
            if same and found.finished and (found.score or not self.scored):
                return found
        return None

    def __str__(self) -> str:
        kind = "" if self.scored else f" lr={self.recipe.lr:g} (tuning)"
        return f"{self.workload} {self.recipe.method} seed {self.recipe.seed}{kind}"


def _result(recipe: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in recipe.items() if key not in _NOT_THE_RESULT}


def base_trials(study: Study, out: Path) -> list[Trial]:
    """The run that all others start from, if the study has one: what it does not say is as they have it."""
    if not study.base:
        return []
    given = {**study.settings, "samples": 0, **study.base}
    trial = _placed(BASE, _loaded(given), Path(BASE), (out,))
    return [replace(trial, scored=False)]


def _started(study: Study, out: Path) -> Study:
    """The study with the place of its base in its settings."""
    if not study.base:
        return study
    return replace(study, settings={**study.settings, "start": str(out / BASE)})


def tuning_trials(study: Study, out: Path, records: Path | None) -> list[Trial]:
    """The short runs of every method at every learning rate."""
    tune, study = study.tune, _started(study, out)
    if tune is None:
        return []
    each = tune.workload == EACH
    workloads = list(study.workloads) if each else [tune.workload or next(iter(study.workloads))]
    found = []
    for workload, rate, method in product(workloads, tune.lr, study.methods):
        recipe = _recipe(study, workload, method, tune.seed)
        steps = max(1, round(recipe.steps * tune.share))
        short = replace(
            recipe, lr=rate, steps=steps, samples=0, evaluate_every=_often(steps, TUNING_EVALUATIONS)
        )
        folder = Path(TUNING, _safe(workload)) if each else Path(TUNING)
        found.append(_placed(workload, short, folder / _safe(method) / f"{rate:g}", (out, records)))
    return [replace(trial, scored=False) for trial in found]


def chosen_rates(study: Study, trials: Sequence[Trial]) -> dict[str, float]:
    """By method, the rate whose short run ended lowest in the objective that it is judged by.

    By workload/method, if each workload chooses for itself.
    """
    each = study.tune is not None and study.tune.workload == EACH
    ends: dict[str, dict[float, float]] = {}
    for trial in trials:
        outcome = trial.outcome()
        if outcome is not None:
            method = trial.recipe.method
            key = f"{trial.workload}/{method}" if each else method
            ends.setdefault(key, {})[trial.recipe.lr] = end(outcome, study.metric_of(method))
    return {key: min(rates, key=rates.__getitem__) for key, rates in ends.items()}


def final_trials(study: Study, rates: dict[str, float], out: Path, records: Path | None) -> list[Trial]:
    """The runs that count: all methods of a seed one after the other, so that a slow hour hits all alike."""
    study = _started(study, out)
    found = []
    for workload in study.workloads:
        for turn, seed in enumerate(study.seeds):
            # Another method comes first each time: which two share the machine changes too.
            shift = turn % len(study.methods)
            for method in study.methods[shift:] + study.methods[:shift]:
                recipe = _recipe(study, workload, method, seed)
                chosen = rates.get(method, rates.get(f"{workload}/{method}", recipe.lr))
                recipe = replace(recipe, lr=chosen)
                place = Path(_safe(workload), _safe(method), str(seed))
                found.append(_placed(workload, recipe, place, (out, records)))
    return found


def _placed(workload: str, recipe: Recipe, place: Path, roots: Sequence[Path | None]) -> Trial:
    places = tuple(root / place for root in roots if root is not None)
    if recipe.start:
        # Runs from another base are other runs, wherever the two are kept.
        with suppress(NothingToStartFrom):  # it is not trained yet
            recipe = replace(recipe, start_digest=digest_at(recipe.start))
    return Trial(workload, replace(recipe, out=str(places[0])), places)


def _recipe(study: Study, workload: str, method: str, seed: int) -> Recipe:
    return _loaded({**study.workloads[workload], **study.settings, "method": method, "seed": seed})


def _loaded(given: dict[str, Any]) -> Recipe:
    settings = dict(given)
    source = str(settings.pop("recipe"))
    recipe = load(source, [f"{key}={_word(value)}" for key, value in settings.items()])
    if "evaluate_every" not in settings and recipe.seconds is None:
        recipe = replace(recipe, evaluate_every=_often(recipe.steps, EVALUATIONS))
    return recipe


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _often(steps: int, evaluations: int) -> int:
    return max(1, steps // evaluations)


def require_sound(study: Study) -> None:
    """Every mistake of every recipe of the study at once, before any work."""
    mistakes: dict[str, None] = {}
    try:
        base_trials(study, Path())
    except BadRecipe as error:
        mistakes |= dict.fromkeys(f"base: {mistake}" for mistake in error.mistakes)
    study = _started(study, Path())
    for workload in study.workloads:
        for method in study.methods:
            try:
                recipe = _recipe(study, workload, method, study.seeds[0])
                require_metric(study, method, recipe)
                if recipe.start and not study.base:
                    digest_at(recipe.start)
            except BadRecipe as error:
                mistakes |= dict.fromkeys(error.mistakes)
            except StepwellError as error:
                mistakes[str(error)] = None
    if study.tune is not None and study.tune.workload not in (None, EACH, *study.workloads):
        mistakes[f"tune: {study.tune.workload!r} is not one of {', '.join(study.workloads)}"] = None
    if study.tune is not None and study.tune.seed in study.seeds:
        mistakes[f"tune: seed {study.tune.seed} is one that is reported; take another"] = None
    if mistakes:
        raise BadRecipe(f"study {study.name}", list(mistakes))


def require_features(study: Study) -> None:
    """Feature networks that runs are scored with must be here before the first of them is trained."""
    from stepwell.evaluate.extractors import extractor

    study = _started(study, Path())
    recipes = [_recipe(study, workload, study.methods[0], study.seeds[0]) for workload in study.workloads]
    for name in {recipe.extractor for recipe in recipes} - {""}:
        extractor(name)


def require_metric(study: Study, method: str, recipe: Recipe) -> None:
    """The objective that a method is judged by must have a meaning on its process."""
    from stepwell.catalogue.build import as_process, weighting

    made = as_process(recipe.process)
    weighting(study.metric_of(method).removeprefix("objective/"))(made, made.grid()[:1])


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_.+" else "-" for letter in name)

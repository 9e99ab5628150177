"""The runs of a study: which ones, and in which folders."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepwell.catalogue.build import fixed_weighting
from stepwell.compare.results import BASE, Outcome, UnreadableRun, read, run_folder
from stepwell.compare.study import EACH, Study
from stepwell.core.errors import StepwellError
from stepwell.evaluate.extractors import extractor
from stepwell.recipes.captions import encoder_of
from stepwell.recipes.load import load
from stepwell.recipes.plan import Plan
from stepwell.recipes.schema import DEFINES_RESULT, BadRecipe, Recipe
from stepwell.recipes.start import NothingToStartFrom, digest_at
from stepwell.recipes.unnamed import EVALUATIONS, how_often


@dataclass(frozen=True)
class Trial:
    """One run of a study."""

    workload: str
    plan: Plan
    folders: tuple[Path, ...]
    """Its run directory, and its thin record if the study keeps them."""
    scored: bool = True
    """Whether bits and distances are measured at its end; not in tuning runs."""

    @property
    def recipe(self) -> Recipe:
        """The plan's settings."""
        return self.plan.recipe

    def outcome(self) -> Outcome | None:
        """The finished run with exactly these settings, if there is one."""
        # Until the base is trained, its weights are not known, and any record of this study stands.
        unknown = {"start_digest"} if self.recipe.start and not self.recipe.start_digest else set()
        for folder in self.folders:
            try:
                outcome = read(folder)
            except UnreadableRun:
                continue
            same = outcome.recipe.agrees(self.recipe, DEFINES_RESULT - unknown)
            if same and outcome.finished and (outcome.score or not self.scored):
                return outcome
        return None

    def __str__(self) -> str:
        kind = "" if self.scored else f" lr={self.recipe.lr:g} (tuning)"
        return f"{self.workload} {self.recipe.method} seed {self.recipe.seed}{kind}"


def base_trials(study: Study, out: Path) -> list[Trial]:
    """The run that all others start from, if the study has one; it shares their settings by default."""
    if not study.base:
        return []
    given = {**study.settings, "samples": 0, **study.base}
    trial = trial_of(BASE, _resolved(given), Path(BASE), (out,))
    return [replace(trial, scored=False)]


def started(study: Study, out: Path) -> Study:
    """The study with from=BASE in its settings."""
    if not study.base:
        return study
    return replace(study, settings={**study.settings, "start": str(out / BASE)})


def final_trials(study: Study, out: Path, records: Path | None) -> list[Trial]:
    """The runs that are reported: all methods of a seed in turn, so that a slow hour affects all alike."""
    study = started(study, out)
    plans = {(w, m): plan_of(study, w, m) for w in study.workloads for m in study.methods}
    trials = []
    for workload, method, seed in study.runs:
        plan = plans[workload, method]
        rate = study.rates.get(method, study.rates.get(f"{workload}/{method}", plan.recipe.lr))
        folder = run_folder(workload, method, seed)
        trials.append(trial_of(workload, plan.with_settings(seed=seed, lr=rate), folder, (out, records)))
    return trials


def trial_of(workload: str, plan: Plan, folder: Path, roots: Sequence[Path | None]) -> Trial:
    """The trial of a plan, in a folder below the study's and below its records."""
    folders = tuple(root / folder for root in roots if root is not None)
    if plan.recipe.start:
        # Runs that start from other weights are other runs.
        with suppress(NothingToStartFrom):  # it is not trained yet
            plan = plan.with_settings(start_digest=digest_at(plan.recipe.start))
    if plan.recipe.captions:
        plan = plan.with_settings(text_digest=encoder_of(plan.recipe).digest)
    return Trial(workload, plan.with_settings(out=str(folders[0])), folders)


def plan_of(study: Study, workload: str, method: str) -> Plan:
    """The plan of a method on a workload; runs differ in seed and learning rate."""
    return _resolved(
        {**study.workloads[workload], **study.settings, "method": method, "seed": study.seeds[0]}
    )


def _resolved(settings: dict[str, Any]) -> Plan:
    # Sheets of samples on the way would cost every method time that nobody looks at.
    changes = {"sample_every": 0, **settings}
    workload = str(changes.pop("recipe"))
    plan = load(workload, settings=changes)
    if "evaluate_every" not in changes and plan.recipe.seconds is None:
        plan = plan.with_settings(evaluate_every=how_often(plan.recipe.steps, EVALUATIONS))
    return plan


def require_sound(study: Study) -> None:
    """Report the mistakes of all plans of the study together, before any work."""
    mistakes: dict[str, None] = {}
    try:
        base_trials(study, Path())
    except BadRecipe as error:
        mistakes |= dict.fromkeys(f"base: {mistake}" for mistake in error.mistakes)
    study = started(study, Path())
    for workload in study.workloads:
        for method in study.methods:
            try:
                plan = plan_of(study, workload, method)
                require_metric(study, plan)
                if plan.recipe.start and not study.base:
                    digest_at(plan.recipe.start)
            except BadRecipe as error:
                mistakes |= dict.fromkeys(error.mistakes)
            except StepwellError as error:
                mistakes[str(error)] = None
    if study.tune is not None and study.tune.workload not in (None, EACH, *study.workloads):
        mistakes[f"tune: {study.tune.workload!r} is not one of {', '.join(study.workloads)}"] = None
    reported = set() if study.tune is None else {*study.tune.seeds} & {*study.seeds}
    if reported:
        mistakes[f"tune: seed {min(reported)} is one that is reported; take another"] = None
    if mistakes:
        raise BadRecipe(f"study {study.name}", list(mistakes))


def require_features(study: Study) -> None:
    """Load the feature networks that runs are scored with, before the first run is trained."""
    study = started(study, Path())
    plans = [plan_of(study, workload, study.methods[0]) for workload in study.workloads]
    for name in {plan.recipe.extractor for plan in plans} - {""}:
        extractor(name)


def require_metric(study: Study, plan: Plan) -> None:
    """Refuse a metric that does not exist on the process."""
    judged_by = fixed_weighting(study.metric_of(plan.recipe.method).weighting)
    judged_by(plan.process, plan.process.grid()[:1])

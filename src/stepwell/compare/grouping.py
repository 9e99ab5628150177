"""Which runs belong together: those of one workload; and what of them cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepwell.compare.curves import FEWEST_EVALUATIONS, at_common_steps, comparable
from stepwell.compare.results import Outcome
from stepwell.compare.study import Study
from stepwell.recipes.schema import SETTINGS

Grouped = dict[str, dict[str, list[Outcome]]]
"""Runs by workload, then by method, in the order of their seeds."""
_COMPARED = frozenset(name for name, setting in SETTINGS.items() if setting.compared)
"""Settings in which runs of one workload may differ."""


def group(runs: Sequence[Outcome], study: Study) -> Grouped:
    """Runs by the settings that distinguish workloads, methods in the order of the study."""
    keys = [run.settings(_COMPARED) for run in runs]
    if len({(key, run.method, run.seed) for key, run in zip(keys, runs, strict=True)}) < len(runs):
        # The same method and seed at two learning rates: then the rate is what is compared.
        keys = [run.settings(_COMPARED - {"lr", "steps", "seconds"}) for run in runs]
    every = sorted({name for key in keys for name, _ in key})
    differing = [name for name in every if len({dict(key).get(name) for key in keys}) > 1]
    only = _only_name(runs, study)
    grouped: Grouped = {}
    for run, key in zip(runs, keys, strict=True):
        name = _name_in_study(run, study) or _name(dict(key), differing) or only
        grouped.setdefault(name, {}).setdefault(run.method, []).append(run)
    ranks = {method: place for place, method in enumerate(study.methods)}
    return {
        name: {
            method: sorted(by_method[method], key=lambda run: run.seed)
            for method in sorted(by_method, key=lambda method: ranks.get(method, len(ranks)))
        }
        for name, by_method in grouped.items()
    }


def _name_in_study(run: Outcome, study: Study) -> str:
    """The one of several workloads of a study whose settings the run has."""
    names = [
        name
        for name, settings in (study.workloads.items() if len(study.workloads) > 1 else ())
        if run.recipe.has({key: value for key, value in settings.items() if key != "recipe"})
    ]
    return names[0] if len(names) == 1 else ""


def _name(settings: dict[str, str], differing: Sequence[str]) -> str:
    """The one value that differs, or key=value of several."""
    if len(differing) == 1 and differing[0] != "lr":
        return settings.get(differing[0], "")
    return ", ".join(f"{part}={settings.get(part)}" for part in differing)


def _only_name(runs: Sequence[Outcome], study: Study) -> str:
    """The name of a single workload: as in the study, or that of its data."""
    if len(study.workloads) == 1:
        return next(iter(study.workloads))
    return Path(runs[0].recipe.data).name


def caveats(runs: Sequence[Outcome], others: Sequence[Outcome]) -> list[str]:
    """Sentences about runs of two methods that were evaluated at other steps or have other lengths."""
    by_seed = {other.seed: other for other in others if other.finished}
    pairs = [(run, by_seed[run.seed]) for run in runs if run.finished and run.seed in by_seed]
    sentences: dict[str, None] = {}
    for run, other in pairs:
        names = f"{run.method} and {other.method}"
        ends = sorted({run.evaluations[-1]["step"], other.evaluations[-1]["step"]})
        common = len(at_common_steps(run, other)[0].evaluations)
        if not comparable(run, other):
            sentences[
                f"{names} are not compared: after warm-up they were evaluated at fewer than "
                f"{FEWEST_EVALUATIONS} common steps. Train both with the same evaluate_every=."
            ] = None
        elif run.recipe.limit != other.recipe.limit:
            sentences[
                f"{names} have other limits (they ended at steps {ends[0]} and {ends[-1]}): their losses are "
                "compared up to the last step that both were evaluated at; what was measured at their ends is not compared."
            ] = None
        elif common < max(len(run.evaluations), len(other.evaluations)) and ends[0] == ends[-1]:
            sentences[f"{names} were evaluated at other steps: compared at the {common} that both have."] = (
                None
            )
    return list(sentences)

"""Which runs belong together: those of one workload; and what of them cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepwell.compare.curves import at_common_steps, comparable
from stepwell.compare.results import Outcome
from stepwell.compare.study import Study
from stepwell.recipes.schema import SETTINGS

Grouped = dict[str, dict[str, list[Outcome]]]
"""Runs by workload, then by method, in the order of their seeds."""
_COMPARED = frozenset(name for name, setting in SETTINGS.items() if setting.compared)
"""Settings in which runs of one workload may differ."""


def group(runs: Sequence[Outcome], study: Study) -> Grouped:
    """Runs by the settings that distinguish workloads, methods in the order of the study."""
    # Where the learning rate decays, a shorter run is not the beginning of a longer one.
    keys = [run.settings(_COMPARED - {"steps"} if run.recipe.decays else _COMPARED) for run in runs]
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
    """The one of several workloads of a study whose settings the run has; the one with most of them."""
    sizes = {
        name: len(settings)
        for name, settings in (study.workloads.items() if len(study.workloads) > 1 else ())
        if run.recipe.has({key: value for key, value in settings.items() if key != "recipe"})
    }
    names = [name for name, size in sizes.items() if size == max(sizes.values())]
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
    """What is said of two methods whose runs were evaluated at other steps or have other lengths."""
    by_seed = {other.seed: other for other in others if other.finished}
    pairs = [(run, by_seed[run.seed]) for run in runs if run.finished and run.seed in by_seed]
    return list(dict.fromkeys(sentence for pair in pairs if (sentence := _caveat(*pair))))


def _caveat(run: Outcome, other: Outcome) -> str:
    names, common = f"{run.method} and {other.method}", at_common_steps(run, other)[0].evaluations
    if not comparable(run, other):
        return (
            f"{names} are not compared: no evaluation near the end of the shorter run is at the same step "
            "and by the same version. Train both with the same evaluate_every=."
        )
    if run.recipe.limit != other.recipe.limit:
        return (
            f"{names} have other limits: their losses are compared until step {common[-1]['step']}, the last "
            "that both have; bits and distances, measured at each run's own end, are not compared."
        )
    if len(common) < max(len(run.evaluations), len(other.evaluations)) and run.recipe.seconds is None:
        return (
            f"{names} were evaluated at other steps: they are compared at the {len(common)} that both have."
        )
    return ""

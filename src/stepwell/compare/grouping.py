"""Which runs may be compared with each other: those that differ in method, seed and learning rate only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepwell.compare.outcome import Outcome
from stepwell.recipes.schema import MAY_CHANGE

Grouped = dict[str, dict[str, list[Outcome]]]
"""Runs by workload, then by method, then in the order of their seeds."""
_OF_THE_RUN = MAY_CHANGE | {"method", "seed", "evaluate_every", "checkpoint_every"}
"""Settings in which runs of one workload may differ; and the learning rate, which each method may choose."""


def group(runs: Sequence[Outcome], study: dict[str, Any]) -> Grouped:
    """Runs under the settings that set workloads apart, methods in the order of the study."""
    keys = [_settings(run, _OF_THE_RUN | {"lr"}) for run in runs]
    if len({(key, run.method, run.seed) for key, run in zip(keys, runs, strict=True)}) < len(runs):
        # The same method and seed at two learning rates: then the rate is what is compared.
        keys = [_settings(run, _OF_THE_RUN - {"steps", "seconds"}) for run in runs]
    every = sorted({name for key in keys for name, _ in key})
    differing = [name for name in every if len({dict(key).get(name) for key in keys}) > 1]
    alone = _only_name(runs, study)
    found: Grouped = {}
    for run, key in zip(runs, keys, strict=True):
        name = _called(run, study) or _name(dict(key), differing) or alone
        found.setdefault(name, {}).setdefault(run.method, []).append(run)
    ranks = {str(method): place for place, method in enumerate(study.get("methods", ()))}
    return {
        name: {
            method: sorted(of[method], key=lambda run: run.seed)
            for method in sorted(of, key=lambda method: ranks.get(method, len(ranks)))
        }
        for name, of in found.items()
    }


def _settings(run: Outcome, apart: frozenset[str]) -> tuple[tuple[str, str], ...]:
    return tuple((key, str(value)) for key, value in sorted(run.recipe.items()) if key not in apart)


def _called(run: Outcome, study: dict[str, Any]) -> str:
    """As its study calls it: the one workload whose settings the run has."""
    workloads = study.get("workloads", {})
    found = [
        str(name)
        for name, settings in (workloads.items() if len(workloads) > 1 else ())
        if all(str(run.recipe.get(key)) == str(value) for key, value in settings.items() if key != "recipe")
    ]
    return found[0] if len(found) == 1 else ""


def _name(settings: dict[str, str], differing: Sequence[str]) -> str:
    """The one value that differs, or key=value of several."""
    if len(differing) == 1 and differing[0] != "lr":
        return settings.get(differing[0], "")
    return ", ".join(f"{part}={settings.get(part)}" for part in differing)


def _only_name(runs: Sequence[Outcome], study: dict[str, Any]) -> str:
    """A single workload is called as its study has it, or by its data."""
    named = list(study.get("workloads", ()))
    return str(named[0]) if len(named) == 1 else Path(str(runs[0].recipe.get("data", "runs"))).name

"""From run directories to a summary: group, judge, tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepwell.compare.results import STUDY, Grouped, LeftOut, Outcome, group, read_all
from stepwell.compare.stats import profile
from stepwell.compare.tables import overall_table, workload_table
from stepwell.compare.verdict import Judgement, error_rates, judge, metric_name, seconds_to, verdict
from stepwell.compare.views import (
    Metric,
    Profile,
    Summary,
    Workload,
    method_view,
    run_view,
    shared_settings,
)
from stepwell.core.errors import StepwellError
from stepwell.runs.metrics import loss

METRICS = ("objective/none", "objective/min-snr", "objective/vlb")
FACTORS = tuple(1 + index / 20 for index in range(41))


def summarise(paths: Sequence[Path]) -> Summary:
    """Everything that is to be told about the runs in or below some directories."""
    runs, left_out = read_all(paths)
    if not runs:
        reasons = "".join(f"\n  - {one.reason}" for one in left_out[:5])
        raise StepwellError(f"there is no run to report on in {', '.join(map(str, paths))}:{reasons}")
    study = _study(paths)
    return tell(runs, left_out, study, [str(path) for path in paths])


def _study(paths: Sequence[Path]) -> dict[str, Any]:
    """What the first study says that is found with the runs: names, baseline, who is judged by what."""
    for path in paths:
        try:
            found = json.loads((path / STUDY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if _sound(found):
            return dict(found)
    return {}


def _sound(study: Any) -> bool:
    """Whether it is a study of ours: anybody may have a file of that name."""
    kinds = {"methods": list, "workloads": dict, "against": dict, "judged_by": dict, "metric": str}
    return isinstance(study, dict) and all(
        isinstance(study.get(k, kind()), kind) for k, kind in kinds.items()
    )


def tell(
    runs: Sequence[Outcome], left_out: Sequence[LeftOut], study: dict[str, Any], paths: Sequence[str]
) -> Summary:
    """The summary of some outcomes."""
    grouped = group(runs, study)
    primary = _primary(study)
    metrics = [key for key in dict.fromkeys([primary, *METRICS]) if _recorded(key, runs)]
    methods = list(dict.fromkeys(method for of in grouped.values() for method in of))
    judgements = {name: _judgements(name, of, study) for name, of in grouped.items()}
    together = [judgement for found in judgements.values() for judgement in found]
    return Summary(
        title=str(study.get("name", "")) or ", ".join(Path(path).name for path in paths),
        verdict=tuple(verdict(together, primary)),
        notes=(*error_rates(together), *_notes(runs)),
        metrics=tuple(Metric(key, metric_name(key)) for key in metrics),
        workloads=tuple(
            _workload(name, of, judgements[name], metrics, methods, baseline_of(of, study))
            for name, of in grouped.items()
        ),
        overall=overall_table(together) if len(grouped) > 1 and together else None,
        profiles=_profiles(grouped, study, methods),
        left_out=tuple(left_out),
        environment=next((run.environment for run in runs if run.environment), {}),
        reproduce=_reproduce(study, runs),
        running=not all(run.finished for run in runs),
    )


def judgements_of(runs: Sequence[Outcome], study: dict[str, Any]) -> list[Judgement]:
    """Every method against what it is judged by, on every workload."""
    return [found for name, of in group(runs, study).items() for found in _judgements(name, of, study)]


def _recorded(metric: str, runs: Sequence[Outcome]) -> bool:
    """Whether all runs have it: some processes have no bound."""
    return all(metric in record for run in runs for record in run.evaluations)


def _primary(study: dict[str, Any]) -> str:
    return loss(str(study.get("metric", "simple"))).key


def _judgements(workload: str, runs: dict[str, list[Outcome]], study: dict[str, Any]) -> list[Judgement]:
    finished = {method: [run for run in mine if run.finished] for method, mine in runs.items()}
    finished = {method: mine for method, mine in finished.items() if mine}
    baseline = baseline_of(runs, study)
    found = []
    for method, mine in finished.items():
        other = study.get("against", {}).get(method, baseline)
        if other == method or other not in finished:
            continue
        own = study.get("judged_by", {}).get(method)
        metric = loss(own).key if own else _primary(study)
        if not _recorded(metric, [*mine, *finished[other]]):
            continue
        found.append(judge(workload, mine, finished[other], metric))
    return found


def baseline_of(runs: dict[str, list[Outcome]], study: dict[str, Any]) -> str:
    """The study's, or uniform, or whatever comes first."""
    named = str(study.get("baseline", "uniform"))
    return named if named in runs else next(iter(runs))


def _workload(
    name: str,
    runs: dict[str, list[Outcome]],
    judgements: Sequence[Judgement],
    metrics: Sequence[str],
    methods: Sequence[str],
    baseline: str,
) -> Workload:
    against = {judgement.method: judgement.against for judgement in judgements}
    everyone = [run for mine in runs.values() for run in mine]
    ends = [run.values("seconds")[-1] for run in everyone]
    return Workload(
        name=name,
        baseline=baseline,
        table=workload_table(runs, judgements, metrics),
        methods=tuple(
            method_view(method, mine, methods.index(method), against.get(method), min(ends))
            for method, mine in runs.items()
        ),
        runs=tuple(run_view(run, metrics) for run in everyone),
        settings=shared_settings([run.recipe for run in everyone]),
    )


def _profiles(grouped: Grouped, study: dict[str, Any], methods: Sequence[str]) -> tuple[Profile, ...]:
    """Of all methods that every workload has, over workloads and seeds, by the study's own metric."""
    everywhere = [name for name in methods if all(name in of for of in grouped.values())]
    base = baseline_of(next(iter(grouped.values())), study)
    if len(grouped) < 2 or len(everywhere) < 2 or base not in everywhere:
        return ()
    names, metric = [base, *(name for name in everywhere if name != base)], _primary(study)
    times: list[list[float]] = [[] for _ in names]
    for of in grouped.values():
        by_seed = [
            {run.seed: run for run in of[name] if run.finished and _recorded(metric, [run])} for name in names
        ]
        for seed in sorted(set.intersection(*(set(found) for found in by_seed))):
            for place, found in enumerate(by_seed):
                times[place].append(seconds_to(found[seed], by_seed[0][seed], metric))
    if not times[0]:
        return ()
    shares = profile(times, FACTORS)
    return tuple(
        Profile(name, methods.index(name), FACTORS, tuple(found))
        for name, found in zip(names, shares, strict=True)
    )


_ABOUT_FEATURES = {
    "fashion16": "Fréchet distances are on the features of a small classifier of fashion16: not FID.",
    "resnet20-cifar10": "Fréchet distances are on the features of a ResNet-20 trained on CIFAR-10: not FID.",
}


def _features(runs: Sequence[Outcome]) -> set[str]:
    return {run.distances[0] for run in runs if run.distances is not None}


def _notes(runs: Sequence[Outcome]) -> list[str]:
    notes = [
        "Losses are held out, of the averaged weights, each the mean of three evaluations. Seconds are of "
        "training alone: evaluation and saving do not count.",
    ]
    notes += [_ABOUT_FEATURES[name] for name in sorted(_features(runs)) if name in _ABOUT_FEATURES]
    if len(_features(runs)) > 1:
        notes.append(f"Runs were compared on different features ({', '.join(sorted(_features(runs)))}).")
    unfinished = sum(not run.finished for run in runs)
    if unfinished:
        noun = "run is" if unfinished == 1 else "runs are"
        notes.append(f"{unfinished} {noun} not finished: shown in the curves, not scored.")
    return notes


def _reproduce(study: dict[str, Any], runs: Sequence[Outcome]) -> tuple[str, ...]:
    if study.get("command"):
        return (str(study["command"]),)
    commands = [run.environment.get("command") for run in runs]
    return tuple(dict.fromkeys(" ".join(map(str, command)) for command in commands if command))[:20]

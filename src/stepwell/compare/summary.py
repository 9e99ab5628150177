"""From run directories to a summary: read, group, judge, and put into words, tables and curves."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from stepwell.analyze.noised import NoisedExample, noised_example
from stepwell.catalogue.build import as_process
from stepwell.compare.answer import answers
from stepwell.compare.curves import final, reached
from stepwell.compare.forecasts import forecast_sentence, forecast_table
from stepwell.compare.grouping import Grouped, caveats, group
from stepwell.compare.judgement import Judgement, judge, measured, overall_table, workload_table
from stepwell.compare.results import LeftOut, Outcome, read_all
from stepwell.compare.stats import profile
from stepwell.compare.study import Study, read_study
from stepwell.compare.verdict import error_rates, of_one_method, verdict
from stepwell.compare.views import Profile, Summary, Workload, method_view, run_view, shared_settings
from stepwell.core.errors import StepwellError
from stepwell.runs.metrics import CURVES, Metric, features_of, loss

NOISED = 7
"""Images along the axis of densities."""
FACTORS = tuple(1 + index / 20 for index in range(41))
"""Factors at which performance profiles are drawn."""


class NothingToReport(StepwellError):
    """Directories without a run that has been evaluated."""


def summarise(paths: Sequence[Path]) -> Summary:
    """The summary of all runs in or below some directories."""
    runs, left_out = read_all(paths)
    if not runs:
        reasons = "".join(f"\n  - {one.reason}" for one in left_out[:5])
        raise NothingToReport(f"there is no run to report on in {', '.join(map(str, paths))}:{reasons}")
    return summarise_runs(
        runs, left_out, read_study(paths), ", ".join("/".join(path.parts[-2:]) for path in paths)
    )


def summarise_runs(
    runs: Sequence[Outcome], left_out: Sequence[LeftOut], study: Study, title: str = ""
) -> Summary:
    """The summary of runs that have been read; the title is for runs without a study."""
    grouped = group(runs, study)
    primary = loss(study.metric)
    losses = [metric for metric in dict.fromkeys([primary, *CURVES]) if _recorded(metric, runs)]
    methods = list(dict.fromkeys(method for by_method in grouped.values() for method in by_method))
    judgements = {name: _judgements(name, by_method, study) for name, by_method in grouped.items()}
    together = [judgement for of_workload in judgements.values() for judgement in of_workload]
    return Summary(
        title=study.name or title,
        verdict=(*_verdict(grouped, together, primary, losses), *forecast_sentence(runs), *_edges(study)),
        notes=(*error_rates(together), *_notes(runs, len(study.runs)), *_caveats(grouped, study)),
        metrics=tuple(losses),
        workloads=tuple(
            _workload(name, by_method, judgements[name], losses, methods, study)
            for name, by_method in grouped.items()
        ),
        answers=answers(grouped, judgements),
        overall=overall_table(together) if len(grouped) > 1 and together else None,
        profiles=_profiles(grouped, study, methods),
        left_out=tuple(left_out),
        environment=next((run.environment for run in runs if run.environment), {}),
        reproduce=_reproduce(study, runs),
        running=not all(run.finished for run in runs) or len(runs) < len(study.runs),
    )


def _verdict(
    grouped: Grouped, judgements: Sequence[Judgement], primary: Metric, losses: Sequence[Metric]
) -> list[str]:
    """Sentences about the methods; a single one has nothing to be compared with, and its loss leads."""
    alone = [(name, runs) for name, by_method in grouped.items() for runs in by_method.values()]
    if len(alone) == 1 and losses:
        return [of_one_method(*alone[0], losses[0])]
    return verdict(judgements, primary)


def judgements_of(runs: Sequence[Outcome], study: Study) -> list[Judgement]:
    """Every method against the one that it is judged against, on every workload."""
    grouped = group(runs, study)
    return [one for name, by_method in grouped.items() for one in _judgements(name, by_method, study)]


def _edges(study: Study) -> list[str]:
    """What is said where tuning chose the smallest or the largest learning rate."""
    if not study.edges:
        return []
    chosen = ", ".join(
        f"{name} ({study.rates[name]:g})" if name in study.rates else f"{name} (every rate failed)"
        for name in study.edges
    )
    return [
        "The learning rate lies at the edge of what was tried, so a better one may lie beyond, and with it "
        f"another verdict: {chosen}."
    ]


def _recorded(metric: Metric, runs: Sequence[Outcome]) -> bool:
    """Whether all runs have a loss: some processes have no bound."""
    return all(metric.key in record for run in runs for record in run.evaluations)


def _judgements(workload: str, runs: dict[str, list[Outcome]], study: Study) -> list[Judgement]:
    finished = {method: [run for run in own if run.finished] for method, own in runs.items()}
    judgements = []
    for method, own in finished.items():
        against, metric = study.against_of(method, runs), study.metric_of(method)
        others = finished.get(against, [])
        if own and others and against != method and _recorded(metric, [*own, *others]):
            judgements.append(judge(workload, own, others, metric))
    return judgements


def _caveats(grouped: Grouped, study: Study) -> list[str]:
    """What could not be compared, or only in part."""
    sentences = []
    for name, by_method in grouped.items():
        for method, own in by_method.items():
            others = by_method.get(study.against_of(method, by_method), own)
            sentences += [f"{name}: {each}" if len(grouped) > 1 else each for each in caveats(own, others)]
    return sentences


def _workload(
    name: str,
    runs: dict[str, list[Outcome]],
    judgements: Sequence[Judgement],
    losses: Sequence[Metric],
    methods: Sequence[str],
    study: Study,
) -> Workload:
    against = {judgement.method: judgement.against for judgement in judgements}
    every = [run for own in runs.values() for run in own]
    shortest = min(run.values("seconds")[-1] for run in every)
    return Workload(
        name=name,
        baseline=study.baseline_among(runs),
        table=workload_table(runs, judgements, losses),
        methods=tuple(
            method_view(method, own, methods.index(method), against.get(method), shortest)
            for method, own in runs.items()
        ),
        runs=tuple(run_view(run, losses) for run in every),
        settings=shared_settings([run.recipe for run in every]),
        forecasts=forecast_table(runs, judgements) if len(every) > 1 else None,
        noise=_noise(every[0].recipe.process),
    )


@cache
def _noise(process: str) -> NoisedExample | None:
    """What the axis of densities looks like; a record may name a process of a package that is not here."""
    with suppress(StepwellError, ImportError):
        return noised_example(as_process(process), NOISED)
    return None


def _profiles(grouped: Grouped, study: Study, methods: Sequence[str]) -> tuple[Profile, ...]:
    """Performance profiles of the methods that every workload has, by the study's metric."""
    everywhere = [name for name in methods if all(name in by_method for by_method in grouped.values())]
    baseline = study.baseline_among(next(iter(grouped.values())))
    if len(grouped) < 2 or len(everywhere) < 2 or baseline not in everywhere:
        return ()
    names, metric = [baseline, *(name for name in everywhere if name != baseline)], loss(study.metric)
    times: list[list[float]] = [[] for _ in names]
    for by_method in grouped.values():
        by_seed = [
            {run.seed: run for run in by_method[name] if run.finished and _recorded(metric, [run])}
            for name in names
        ]
        for seed in sorted(set.intersection(*map(set, by_seed))):
            target = final(by_seed[0][seed], metric.key)
            for place, runs in enumerate(by_seed):
                times[place].append(reached(runs[seed], metric.key, target, "seconds"))
    if not times[0]:
        return ()
    return tuple(
        Profile(name, methods.index(name), FACTORS, tuple(shares))
        for name, shares in zip(names, profile(times, FACTORS), strict=True)
    )


_NETWORKS = {
    "fashion16": "a small classifier of fashion16",
    "resnet20-cifar10": "a ResNet-20 trained on CIFAR-10",
}


def _notes(runs: Sequence[Outcome], planned: int) -> list[str]:
    notes = [
        "Losses are held out, of the averaged weights; a final loss is the mean over the last tenth of "
        "training. Seconds are of training alone: evaluation and saving do not count.",
    ]
    features = sorted({features_of(run.score) for run in runs} - {""})
    notes += [
        f"Fréchet distances are on the features of {_NETWORKS[name]}: not FID."
        for name in features
        if name in _NETWORKS
    ]
    if len(features) > 1:
        notes.append(
            f"Runs were scored on different features ({', '.join(features)}): only equal ones are compared."
        )
    notes += [metric.note for metric in measured(runs) if metric.note]
    unfinished = sum(not run.finished for run in runs)
    if unfinished:
        noun = "run is" if unfinished == 1 else "runs are"
        notes.append(f"{unfinished} {noun} not finished: in the curves, not in the tables.")
    if len(runs) < planned:
        notes.append(f"{len(runs)} of the study's {planned} runs have been evaluated so far.")
    return notes


def _reproduce(study: Study, runs: Sequence[Outcome]) -> tuple[str, ...]:
    if study.command:
        return (study.command,)
    commands = [run.environment.get("command") for run in runs]
    return tuple(dict.fromkeys(shlex.join(map(str, command)) for command in commands if command))[:20]

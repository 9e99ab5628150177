"""A study: workloads x methods x seeds, from a small TOML file or from words on the command line."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from stepwell.catalogue.find import canonical, names
from stepwell.compare.results import STUDY
from stepwell.compare.study_parts import EFFORT as EFFORT
from stepwell.compare.study_parts import (
    OF_ONE_RUN,
    TABLES,
    base_of,
    effort_of,
    methods_of,
    require_tables,
    seeds_of,
    tuning_of,
    workloads_of,
)
from stepwell.compare.study_parts import Tuning as Tuning
from stepwell.core.errors import unknown
from stepwell.core.reading import Unreadable, object_of, place, toml_of
from stepwell.recipes.method import study_files, workload_files
from stepwell.recipes.schema import BadRecipe, read_words
from stepwell.runs.metrics import OBJECTIVES, Metric, loss

EACH = "each"
"""The workload to tune on: each one for itself."""


@dataclass(frozen=True)
class Study:
    """Workloads, methods and seeds to compare."""

    name: str = ""
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: the workload under `recipe`, and the settings that are changed in it."""
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    baseline: str = "uniform"
    metric: str = "simple"
    """The objective that the verdict is about: simple, bound or a weighting's name."""
    against: dict[str, str] = field(default_factory=dict)
    """Methods that are compared with another one than the baseline."""
    judged_by: dict[str, str] = field(default_factory=dict)
    """Methods with a metric of their own."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of every run."""
    base: dict[str, Any] = field(default_factory=dict)
    """A run that is trained once and that all others start from: its `recipe` and settings."""
    tune: Tuning | None = None
    effort: dict[str, int] = field(default_factory=lambda: dict(EFFORT))
    command: str = ""
    """The command that runs it again."""
    rates: dict[str, float] = field(default_factory=dict)
    """Learning rates that tuning chose: by method, or by workload/method."""
    edges: tuple[str, ...] = ()
    """Methods without a best rate inside the grid: it lies at its edge, or every rate failed."""

    def metric_of(self, method: str) -> Metric:
        """The held-out loss that a method is judged by."""
        return loss(self.judged_by.get(method, self.metric))

    def baseline_among(self, methods: Collection[str]) -> str:
        """The study's baseline, else draws like the process's own, else the first method."""
        return next((name for name in (self.baseline, "reference") if name in methods), next(iter(methods)))

    def against_of(self, method: str, methods: Collection[str]) -> str:
        """The method that another one is judged against, itself if it is the baseline."""
        return self.against.get(method, self.baseline_among(methods))

    @property
    def runs(self) -> list[tuple[str, str, int]]:
        """(workload, method, seed) in the order of running: for each seed another method comes first."""
        names, turns = self.methods, product(self.workloads, enumerate(self.seeds), range(len(self.methods)))
        return [(work, names[(turn + place) % len(names)], seed) for work, (turn, seed), place in turns]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


_SAVED: dict[str, tuple[type, type]] = {
    **dict.fromkeys(("name", "baseline", "metric", "command"), (str, str)),
    **dict.fromkeys(("methods", "edges"), (list, str)),
    **dict.fromkeys(("against", "judged_by"), (dict, str)),
    "seeds": (list, int),
    "workloads": (dict, dict),
    "rates": (dict, float),
}
"""What a summary needs of a study.json: the type of each part, and of the values in it."""


def read_study(paths: Sequence[Path]) -> Study:
    """The first study.json in the directories; an empty study if there is none, or none of ours."""
    for path in paths:
        with suppress(Unreadable):
            known = {key: value for key, value in object_of(path / STUDY).items() if key in _SAVED}
            if all(_is_saved(key, value) for key, value in known.items()):
                return Study(**known)
    return Study()


def _is_saved(key: str, value: Any) -> bool:
    kind, of = _SAVED[key]
    values = value.values() if isinstance(value, dict) else value
    return isinstance(value, kind) and all(isinstance(one, of) for one in values)


EFFORT_WORDS = ("generated", "reference", "bits_images", "bits_timesteps")
"""What of a study's [effort] may be given as words; its other parts are named like settings."""


def load_study(what: str, words: Sequence[str] = ()) -> Study:
    """A shipped study, a study or workload file, or a workload's name, changed by key=value words."""
    given = _read(what)
    mistakes: list[str] = []
    require_tables(given, f"study {what}")
    settings = dict(given.pop("settings", {}))
    for key, value in read_words(words, mistakes, texts=("methods", "tune")).items():
        if key == "methods":
            given[key] = value
            _drop_other_methods(given)
        elif key == "workloads" and "workload" in given:
            given["workload"] = _chosen(given["workload"], str(value).split(","), mistakes)
        elif key in EFFORT_WORDS:
            given["effort"] = {**given.get("effort", {}), key: value}
        elif key in _KEYS:
            given[key] = value
        else:
            settings[key] = value
    values = {**given, "settings": settings, "name": given.get("name", Path(what).stem)}
    study = check(values, mistakes, f"study {what}")
    if mistakes:
        raise BadRecipe(f"study {what}", mistakes)
    return replace(study, command=shlex.join(["stepwell", "compare", what, *words]))


def _drop_other_methods(given: dict[str, Any]) -> None:
    """Drop entries about methods that were left out by methods=."""
    methods = methods_of(given["methods"], [])
    for part in ("against", "judged_by"):
        given[part] = {name: value for name, value in given.get(part, {}).items() if name in methods}
    if given.get("baseline") not in methods:
        given.pop("baseline", None)


def _chosen(workloads: Mapping[str, Any], names: Sequence[str], mistakes: list[str]) -> dict[str, Any]:
    """Those workloads of a study that workloads= names."""
    mistakes += [
        str(unknown("workload of this study", name, workloads)) for name in names if name not in workloads
    ]
    return {name: workloads[name] for name in names if name in workloads}


_KEYS = ("methods", "seeds", "baseline", "metric", "tune", "against", "judged_by", "effort", "workloads")


def _read(what: str) -> dict[str, Any]:
    """The content of a study file, or of a workload as a study."""
    name = canonical(what)
    if name in study_files():
        return {"name": name, **toml_of(study_files()[name])}
    if what.endswith(".toml"):
        found = toml_of(place(what))
        return found if "methods" in found else {"workloads": [what]}
    if name in workload_files():
        return {"workloads": [name]}
    raise unknown("study or workload", what, {**study_files(), **workload_files()})


def check(given: Mapping[str, Any], mistakes: list[str], source: str) -> Study:
    """A Study; mistakes are appended, and if there are any the study must not be used."""
    require_tables(given, source)
    for key in given:
        if key not in (*_KEYS, *TABLES, "name"):
            mistakes.append(str(unknown("part of a study", key, (*_KEYS, *TABLES))))
    for table in (given["settings"], *given.get("workload", {}).values()):
        mistakes += [f"{key}= is for one run: {hint}" for key, hint in OF_ONE_RUN.items() if key in table]
    methods = methods_of(given.get("methods", "uniform,neyman"), mistakes)
    baseline = str(given.get("baseline", "uniform" if "uniform" in methods else methods[0]))
    of_methods = {"baseline": [baseline], "against": given.get("against", {}).values()}
    of_methods |= {f"{part} (left side)": given.get(part, {}) for part in ("against", "judged_by")}
    for part, found in of_methods.items():
        mistakes += [f"{part}: {name!r} is not among the methods" for name in found if name not in methods]
    for part, name in {"metric": given.get("metric", "simple"), **given.get("judged_by", {})}.items():
        if str(name) not in (*OBJECTIVES, *names("weighting")):
            mistakes.append(f"{part}: {unknown('metric', name, (*OBJECTIVES, *names('weighting')))}")
    return Study(
        name=str(given["name"]),
        workloads=workloads_of(given, mistakes),
        methods=methods,
        seeds=seeds_of(given.get("seeds", 3), mistakes),
        baseline=baseline,
        metric=str(given.get("metric", "simple")),
        against=dict(given.get("against", {})),
        judged_by=dict(given.get("judged_by", {})),
        settings=dict(given["settings"]),
        base=base_of(given, mistakes),
        tune=tuning_of(given.get("tune"), mistakes),
        effort=effort_of(given.get("effort", {}), mistakes),
    )

"""A study: workloads x methods x seeds, from a small TOML file or from words on the command line."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from stepwell.catalogue.find import canonical, names
from stepwell.catalogue.spec import literal, split_pair
from stepwell.compare.results import STUDY
from stepwell.core.errors import StepwellError, unknown
from stepwell.recipes.method import study_files, workload_files
from stepwell.recipes.schema import BadRecipe
from stepwell.runs.metrics import OBJECTIVES, Metric, loss

EACH = "each"
"""The workload to tune on: each one for itself."""
EFFORT = {"generated": 1000, "reference": 12_000, "steps": 25, "bits_images": 64, "bits_timesteps": 50}
"""Default images and steps with which a finished run is scored."""


@dataclass(frozen=True)
class Tuning:
    """Short runs that choose the learning rate of each method, all methods alike."""

    lr: tuple[float, ...]
    seeds: tuple[int, ...] = (100, 101)
    """None of the study's seeds: nothing is tuned on what is reported."""
    share: float = 0.25
    """Share of the steps."""
    workload: str | None = None
    """The workload to tune on, the first by default; the others use its rates, unless it is `each`."""
    widen: int = 4
    """How often the grid may grow while the best rate of a method lies at its edge."""
    evaluations: int = 8
    """Of each of these runs."""
    tie: float = 0.01
    """The rate below the best one is taken if its loss is at most this share higher and the rate above fails.

    Short runs see how good a rate is, not how often longer ones diverge; next to a failing rate they do."""


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


_SAVED: dict[str, type] = {
    **dict.fromkeys(("name", "baseline", "metric", "command"), str),
    **dict.fromkeys(("workloads", "against", "judged_by", "rates"), dict),
    **dict.fromkeys(("methods", "seeds", "edges"), list),
}


def read_study(paths: Sequence[Path]) -> Study:
    """The first study.json in the directories; an empty study if there is none, or none of ours."""
    for path in paths:
        with suppress(OSError, ValueError, AttributeError):
            content = json.loads((path / STUDY).read_text(encoding="utf-8"))
            known = {key: value for key, value in content.items() if key in _SAVED}
            if all(isinstance(value, _SAVED[key]) for key, value in known.items()):
                return Study(**known)
    return Study()


def load_study(what: str, words: Sequence[str] = ()) -> Study:
    """A shipped study, a study or workload file, or a workload's name, changed by key=value words."""
    given = _read(what)
    mistakes: list[str] = []
    settings = dict(given.pop("settings", {}))
    for word in words:
        try:
            key, value = split_pair(word)
        except StepwellError as error:
            mistakes.append(str(error))
            continue
        if key in ("methods", "tune"):
            given[key] = word.partition("=")[2]
            if key == "methods":
                _drop_other_methods(given)
        elif key == "workloads" and "workload" in given:
            given["workload"] = _chosen(given["workload"], str(value).split(","), mistakes)
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
    methods = _methods(given["methods"], [])
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
_TABLES = ("against", "judged_by", "effort", "settings", "workload", "base")


def _read(what: str) -> dict[str, Any]:
    """The content of a study file, or of a workload as a study."""
    name = canonical(what)
    if name in study_files():
        return {"name": name, **_toml(study_files()[name])}
    if what.endswith(".toml"):
        found = _toml(Path(what))
        return found if "methods" in found else {"workloads": [what]}
    if name in workload_files():
        return {"workloads": [name]}
    raise unknown("study or workload", what, {**study_files(), **workload_files()})


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StepwellError(f"cannot read the study {path}: {error.strerror}.") from None
    except ValueError as error:
        raise StepwellError(f"{path} is not valid TOML: {error}.") from None


def check(given: Mapping[str, Any], mistakes: list[str], source: str) -> Study:
    """A Study; mistakes are appended, and if there are any the study must not be used."""
    for key in given:
        if key not in (*_KEYS, *_TABLES, "name"):
            mistakes.append(str(unknown("part of a study", key, (*_KEYS, *_TABLES))))
    for key in _TABLES:
        if key in given and not isinstance(given[key], Mapping):
            mistakes.append(f"{key} must be a table of key = value, not {given[key]!r}")
            raise BadRecipe(source, mistakes)
    methods = _methods(given.get("methods", "uniform,neyman"), mistakes)
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
        workloads=_workloads(given),
        methods=methods,
        seeds=_seeds(given.get("seeds", 3), mistakes),
        baseline=baseline,
        metric=str(given.get("metric", "simple")),
        against=dict(given.get("against", {})),
        judged_by=dict(given.get("judged_by", {})),
        settings=dict(given["settings"]),
        base=_base(given),
        tune=_tuning(given.get("tune"), mistakes),
        effort=_effort(given.get("effort", {}), mistakes),
    )


def _methods(given: Any, mistakes: list[str]) -> tuple[str, ...]:
    """Methods from a list, or from words between commas; a parameter after a comma belongs to its method."""
    names: list[str] = []
    for part in given.split(",") if isinstance(given, str) else given:
        is_parameter = isinstance(given, str) and "=" in part and ":" not in part.partition("=")[0]
        if is_parameter and names:
            names[-1] += f",{part.strip()}"
        else:
            names.append(str(part).strip())
    if not names or not all(names):
        mistakes.append(f"methods must be names between commas, not {given!r}")
        return ("uniform",)
    mistakes += [f"methods: {name!r} is given twice" for name in sorted(set(names)) if names.count(name) > 1]
    return tuple(names)


def _seeds(given: Any, mistakes: list[str]) -> tuple[int, ...]:
    """3 means 0, 1, 2; a list means itself."""
    found = tuple(range(given)) if type(given) is int else given
    if isinstance(found, list | tuple) and found and all(type(s) is int and s >= 0 for s in found):
        return tuple(dict.fromkeys(found))
    mistakes.append(f"seeds must be a number of seeds above 0 or a list of seeds, not {given!r}")
    return (0,)


def _workloads(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found = {name: {"recipe": name, **table} for name, table in given.get("workload", {}).items()}
    listed = given.get("workloads", [])
    for name in listed.split(",") if isinstance(listed, str) else listed:
        found.setdefault(Path(str(name)).stem, {"recipe": str(name)})
    return found


def _base(given: Mapping[str, Any]) -> dict[str, Any]:
    """The run to start from; none if the settings name another start."""
    named = any(word in given["settings"] for word in ("from", "start"))
    return {} if named else dict(given.get("base", {}))


def _tuning(given: Any, mistakes: list[str]) -> Tuning | None:
    if given is None or given == "none":
        return None
    table = {"lr": [literal(rate) for rate in given.split(",")]} if isinstance(given, str) else dict(given)
    rates = table.pop("lr", ())
    if not isinstance(rates, list) or len(set(rates)) < 2 or not all(_positive(rate) for rate in rates):
        mistakes.append(f"tune needs at least two learning rates above 0, such as 1e-3,2e-3, not {rates!r}")
        return None
    try:
        if "seeds" in table:
            table["seeds"] = _seeds(table["seeds"], mistakes)
        found = Tuning(lr=tuple(float(rate) for rate in rates), **table)
    except TypeError:
        known = ", ".join(Tuning.__dataclass_fields__)
        mistakes.append(f"tune has {', '.join(table)}: known are {known}")
        return None
    if not _count(found.widen):
        mistakes.append(f"tune: widen must be 0 or more, not {found.widen!r}")
    if not _count(found.evaluations) or not found.evaluations:
        mistakes.append(f"tune: evaluations must be 1 or more, not {found.evaluations!r}")
    if not 0 <= found.tie < 1:
        mistakes.append(f"tune: tie must lie in [0, 1), not {found.tie}")
    if not 0 < found.share <= 1:
        mistakes.append(f"tune: share must lie in (0, 1], not {found.share}")
    return found


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _effort(given: Mapping[str, Any], mistakes: list[str]) -> dict[str, int]:
    mistakes += [str(unknown("effort", key, EFFORT)) for key in given if key not in EFFORT]
    mistakes += [f"effort: {k} must be 0 or more, not {v!r}" for k, v in given.items() if not _count(v)]
    return {**EFFORT, **given}


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0

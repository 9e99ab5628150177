"""The parts of a study as a file or words give them, each checked; mistakes are appended to a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.catalogue.spec import literal
from stepwell.core import require
from stepwell.core.errors import quoted, unknown
from stepwell.recipes.schema import BadRecipe

EFFORT = {"generated": 1000, "reference": 12_000, "steps": 25, "bits_images": 64, "bits_timesteps": 50}
"""Default images and steps with which a finished run is scored."""
TABLES = ("against", "judged_by", "effort", "settings", "workload", "base")
OF_ONE_RUN = {
    "method": "write methods=A,B",
    "seed": "write seeds=3, or seeds=[7, 8]",
    "out": "write out=FOLDER on the command line",
}
"""Settings that a comparison chooses for each run, and what is meant instead."""
_MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Tuning:
    """Short runs that choose the learning rate of each method, all methods alike."""

    lr: tuple[float, ...]
    seeds: tuple[int, ...] = (100, 101)
    """None of the study's seeds: nothing is tuned on what is reported."""
    share: float = 0.25
    """Share of the steps."""
    least_steps: int = 100
    """Steps of each of these runs at least, or all where a study has fewer.

    25 steps of 100 once chose half of the rate that was best in the end (benchmarks/LOG.md, edm-256)."""
    workload: str | None = None
    """The workload to tune on, the first by default; the others use its rates, unless it is `each`."""
    widen: int = 4
    """How often the grid may grow while the best rate of a method lies at its edge."""
    evaluations: int = 8
    """Of each of these runs."""
    tie: float = 0.01
    """Rates are level if their losses differ by at most this share.

    A method then takes the rate of the one it is judged against: between level rates luck would choose."""
    caution: float = 0.03
    """The rate below the best one is taken if its loss is at most this share higher and the rate above fails.

    Short runs do not see how often longer ones diverge (benchmarks/LOG.md, cifar10-linear-4)."""


def require_tables(given: Mapping[str, Any], source: str) -> None:
    """Refuse a study whose parts are not tables, or not tables of texts or tables, where they must be."""
    mistakes = [
        f"{key} must be a table of key = value, not {quoted(given[key])}"
        for key in TABLES
        if key in given and not isinstance(given[key], Mapping)
    ]
    for key, of, what in (
        ("against", str, "text"),
        ("judged_by", str, "text"),
        ("workload", Mapping, "table"),
    ):
        table = given.get(key, {})
        values = table.items() if isinstance(table, Mapping) else ()
        mistakes += [
            f"{key}: {name} must be a {what}, not {quoted(v)}" for name, v in values if not isinstance(v, of)
        ]
    if not isinstance(given.get("name", ""), str):
        mistakes.append(f"name must be text between quotes, not {quoted(given['name'])}")
    if mistakes:
        raise BadRecipe(source, mistakes)


def methods_of(given: Any, mistakes: list[str]) -> tuple[str, ...]:
    """Methods from a list, or from words between commas; a parameter after a comma belongs to its method."""
    names: list[str] = []
    if not isinstance(given, str | list) or not all(isinstance(part, str) for part in given):
        mistakes.append(f"methods must be names, such as ['uniform', 'neyman'], not {quoted(given)}")
        return ("uniform",)
    for part in given.split(",") if isinstance(given, str) else given:
        is_parameter = isinstance(given, str) and "=" in part and ":" not in part.partition("=")[0]
        if is_parameter and names:
            names[-1] += f",{part.strip()}"
        else:
            names.append(str(part).strip())
    if not names or not all(names):
        mistakes.append(f"methods must be names between commas, not {quoted(given)}")
        return ("uniform",)
    mistakes += [f"methods: {name!r} is given twice" for name in sorted(set(names)) if names.count(name) > 1]
    return tuple(names)


def seeds_of(given: Any, mistakes: list[str]) -> tuple[int, ...]:
    """3 means 0, 1, 2; a list means itself."""
    found = tuple(range(min(given, _MOST_SEEDS + 1))) if type(given) is int else given
    if isinstance(found, list | tuple) and len(found) > _MOST_SEEDS:
        mistakes.append(f"seeds must be at most {_MOST_SEEDS:,}, not {quoted(given)}")
    elif isinstance(found, list | tuple) and found and all(_count(s) for s in found):
        return tuple(dict.fromkeys(found))
    else:
        mistakes.append(f"seeds must be a number of seeds above 0 or a list of seeds, not {quoted(given)}")
    return (0,)


def workloads_of(given: Mapping[str, Any], mistakes: list[str]) -> dict[str, dict[str, Any]]:
    """Workloads by name, each with its `recipe` and settings."""
    found = {name: {"recipe": name, **table} for name, table in given.get("workload", {}).items()}
    listed = given.get("workloads", [])
    listed = listed.split(",") if isinstance(listed, str) else listed
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        mistakes.append(f"workloads must be names or files, such as ['fashion16'], not {quoted(listed)}")
        return found
    for path in listed:
        name = Path(path).stem
        if name in found:
            mistakes.append(f"workloads: two are called {name!r}; name them apart, as [workload.NAME]")
        found[name] = {"recipe": path}
    if not found:
        mistakes.append(
            "a study needs a workload: write workloads = ['fashion16'], or a table [workload.NAME]"
        )
    mistakes += [
        f"workload.{name}: recipe must be text, not {quoted(table['recipe'])}"
        for name, table in found.items()
        if not isinstance(table["recipe"], str)
    ]
    return found


def base_of(given: Mapping[str, Any], mistakes: list[str]) -> dict[str, Any]:
    """The run to start from; none if the settings name another start."""
    base = dict(given.get("base", {}))
    if base and not isinstance(base.get("recipe"), str):
        mistakes.append("base needs the workload that it trains: write recipe = 'fashion16' in [base]")
    named = any(word in given["settings"] for word in ("from", "start"))
    return {} if named else base


def tuning_of(given: Any, mistakes: list[str]) -> Tuning | None:
    """The short runs that choose learning rates, from a table or from rates between commas."""
    if given is None or given == "none":
        return None
    table = {"lr": given}
    if isinstance(given, str):
        table = {"lr": [literal(rate) for rate in given.split(",")]}
    elif isinstance(given, Mapping):
        table = dict(given)
    rates = table.pop("lr", ())
    if (
        not isinstance(rates, list)
        or not all(_number(rate) and rate > 0 for rate in rates)
        or len(set(rates)) < 2
    ):
        mistakes.append(
            f"tune needs at least two learning rates above 0, such as 1e-3,2e-3, not {quoted(rates)}"
        )
        return None
    try:
        if "seeds" in table:
            table["seeds"] = seeds_of(table["seeds"], mistakes)
        found = Tuning(lr=tuple(float(rate) for rate in rates), **table)
    except TypeError:
        known = ", ".join(Tuning.__dataclass_fields__)
        mistakes.append(f"tune has {', '.join(table)}: known are {known}")
        return None
    rules = {
        "widen": (_count(found.widen), "be 0 or more"),
        "evaluations": (_count(found.evaluations) and found.evaluations, "be 1 or more"),
        "least_steps": (_count(found.least_steps) and found.least_steps, "be 1 or more"),
        "tie": (_number(found.tie) and 0 <= found.tie < 1, "lie in [0, 1)"),
        "caution": (_number(found.caution) and 0 <= found.caution < 1, "lie in [0, 1)"),
        "share": (_number(found.share) and 0 < found.share <= 1, "lie in (0, 1]"),
    }
    mistakes += [
        f"tune: {name} must {rule}, not {quoted(getattr(found, name))}"
        for name, (kept, rule) in rules.items()
        if not kept
    ]
    return found


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and require.is_finite(value)


def effort_of(given: Mapping[str, Any], mistakes: list[str]) -> dict[str, int]:
    """Images and steps with which runs are scored."""
    mistakes += [str(unknown("effort", key, EFFORT)) for key in given if key not in EFFORT]
    mistakes += [f"effort: {k} must be 0 or more, not {quoted(v)}" for k, v in given.items() if not _count(v)]
    return {**EFFORT, **given}


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= require.MOST

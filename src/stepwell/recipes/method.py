"""The shipped recipes, by name. Plain paths: listing them imports nothing."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from stepwell.catalogue.find import all_entries, canonical, find, names
from stepwell.catalogue.spec import split_spec
from stepwell.core.errors import UnknownName, unknown

_HERE = Path(__file__).parent


def workload_files() -> dict[str, Path]:
    """Data, network and training settings."""
    return {path.stem: path for path in sorted((_HERE / "workloads").glob("*.toml"))}


def method_files() -> dict[str, Path]:
    """Combinations of sampler and weighting that a paper names."""
    return {path.stem: path for path in sorted((_HERE / "methods").glob("*.toml"))}


def study_files() -> dict[str, Path]:
    """Comparisons: workloads, methods and seeds."""
    return {path.stem: path for path in sorted((_HERE / "studies").glob("*.toml"))}


def first_words(path: Path) -> str:
    """The sentence a recipe file opens with: the last comment line before the settings."""
    opening = list(takewhile(lambda line: line.startswith("#"), path.read_text().splitlines()))
    return opening[-1][1:].strip() if opening else ""


Spec = tuple[str, dict[str, Any]]

# What is not named: draws as the process's own objective has them, without weights.
_DRAWN: Spec = ("reference", {})
_WEIGHTED: Spec = ("none", {})


@dataclass(frozen=True)
class Method:
    """What to draw and how to weight it."""

    sampler: Spec
    weighting: Spec


def method_names() -> list[str]:
    """Everything that may stand after method=."""
    return sorted({*method_files(), *names("sampler"), *names("weighting")})


def resolve(spec: str) -> Method:
    """A method from `NAME`, `SAMPLER+WEIGHTING` (each with `:key=value,...`) or a TOML file."""
    if spec.endswith(".toml") or canonical(spec) in method_files():
        return _from_file(Path(spec) if spec.endswith(".toml") else method_files()[canonical(spec)])
    chosen: dict[str, Spec] = {}
    for part in spec.split("+"):
        name, given = split_spec(part.strip())
        kind = _kind(name, taken="sampler" in chosen)
        if kind in chosen:
            raise UnknownName(f"method {spec!r} names two {kind}s, {chosen[kind][0]} and {name}: give one.")
        chosen[kind] = (name, given)
    return Method(chosen.get("sampler", _DRAWN), chosen.get("weighting", _WEIGHTED))


def _kind(name: str, taken: bool) -> str:
    """speed is both: the sampler first, the weighting after a plus sign."""
    kinds = [kind for kind in ("sampler", "weighting") if _known(kind, name)]
    if not kinds:
        try:
            find("sampler", name)
        except UnknownName as error:
            if "means two things" in str(error):
                raise
        raise unknown("method", name, method_names())
    return kinds[-1] if taken else kinds[0]


def _known(kind: str, name: str) -> bool:
    wanted = canonical(name)
    return any(e.kind == kind and wanted in (e.name, *e.aliases) for e in all_entries().values())


def _from_file(path: Path) -> Method:
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UnknownName(f"there is no method file {path}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UnknownName(f"{path} is not valid TOML: {error}.") from None
    parts = {}
    for kind, default in (("sampler", _DRAWN[0]), ("weighting", _WEIGHTED[0])):
        table = dict(content.get(kind, {"name": default}))
        name = table.pop("name", default)
        find("sampler" if kind == "sampler" else "weighting", name)
        parts[kind] = (name, table)
    return Method(parts["sampler"], parts["weighting"])

"""A method: a sampler with or without a weighting, by one name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.catalogue.find import all_entries, canonical, find, names, split_spec
from stepwell.core.errors import UnknownName, unknown
from stepwell.recipes.files import method_files

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

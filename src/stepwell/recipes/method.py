"""Methods (a sampler with a weighting, by one name) and the shipped files that name them, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from stepwell.catalogue.entry import Kind
from stepwell.catalogue.find import canonical, find, kinds_of, names
from stepwell.catalogue.spec import Spec, split_spec
from stepwell.core.errors import UnknownName, unknown
from stepwell.core.reading import place, toml_of

_HERE = Path(__file__).parent
METHOD_KINDS: tuple[Kind, ...] = ("sampler", "weighting")


def workload_files() -> dict[str, Path]:
    """Shipped workloads: data, network and training settings."""
    return {path.stem: path for path in sorted((_HERE / "workloads").glob("*.toml"))}


def method_files() -> dict[str, Path]:
    """Shipped methods: combinations of sampler and weighting that a paper names."""
    return {path.stem: path for path in sorted((_HERE / "methods").glob("*.toml"))}


def study_files() -> dict[str, Path]:
    """Shipped studies: workloads, methods and seeds."""
    return {path.stem: path for path in sorted((_HERE / "studies").glob("*.toml"))}


def first_words(path: Path) -> str:
    """The sentence a recipe file opens with: the last comment line before the settings."""
    opening = list(takewhile(lambda line: line.startswith("#"), path.read_text().splitlines()))
    return opening[-1][1:].strip() if opening else ""


@dataclass(frozen=True)
class Method:
    """How timesteps are drawn and losses weighted."""

    sampler: Spec
    weighting: Spec


def method_names() -> list[str]:
    """Everything that may stand after method=."""
    return sorted({*method_files(), *names("sampler"), *names("weighting")})


def parse_method(text: str) -> Method:
    """A method from `NAME`, `SAMPLER+WEIGHTING` (each with `:key=value,...`) or a TOML file."""
    if text.endswith(".toml") or canonical(text) in method_files():
        return _from_file(place(text) if text.endswith(".toml") else method_files()[canonical(text)])
    parts: dict[Kind, Spec] = {}
    for part in map(str.strip, text.split("+")):
        name, parameters = split_spec(part)
        kind = _kind(name, taken="sampler" in parts)
        spec = Spec(kind, find(kind, name).name, parameters)
        if kind in parts:
            raise UnknownName(f"method {text!r} names two {kind}s, {parts[kind].name} and {name}: give one.")
        parts[kind] = spec
    return _method(parts)


def _method(parts: Mapping[Kind, Spec]) -> Method:
    """A part that is not named is the process's own density, or no weighting."""
    sampler = parts.get("sampler", Spec("sampler", "reference"))
    return Method(sampler, parts.get("weighting", Spec("weighting", "none")))


def _kind(name: str, taken: bool) -> Kind:
    """Whether a name is a sampler or a weighting; speed is both, a sampler unless one is named already."""
    kinds = [kind for kind in METHOD_KINDS if kind in kinds_of(name)]
    if not kinds:
        try:
            find("sampler", name)
        except UnknownName as error:
            if "means two things" in str(error):
                raise
        raise unknown("method", name, method_names())
    return kinds[-1] if taken else kinds[0]


def _from_file(path: Path) -> Method:
    content = toml_of(path)
    other = [key for key in content if key not in METHOD_KINDS]
    if other or not content:
        found = f"[{other[0]}]" if other else "nothing"
        raise UnknownName(f"{path} has {found}, and a method file has [sampler] and [weighting] only.")
    parts: dict[Kind, Spec] = {}
    for kind in METHOD_KINDS:
        table = content.get(kind)
        if table is None:
            continue
        if not isinstance(table, dict) or "name" not in table:
            raise UnknownName(f"{path}: [{kind}] needs a line such as name = {names(kind)[0]!r}.")
        name, parameters = table["name"], {key: value for key, value in table.items() if key != "name"}
        parts[kind] = Spec(kind, find(kind, name).name, parameters)
    return _method(parts)

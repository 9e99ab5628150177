"""The catalogue itself. `tests/test_catalogue.py` compares every line with its factory's signature."""

from __future__ import annotations

import ast
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from stepwell.catalogue.entry import KINDS, Entry, Kind, Parameter
from stepwell.catalogue.processes import PROCESSES as PROCESSES
from stepwell.catalogue.samplers import SAMPLERS as SAMPLERS
from stepwell.catalogue.weightings import WEIGHTINGS as WEIGHTINGS
from stepwell.core.errors import InvalidParameter, UnknownName, unknown

ENTRIES = PROCESSES + SAMPLERS + WEIGHTINGS

SHAPING = (
    Parameter("shift", None, "towards noise for s > 1: u -> s u / (1 + (s - 1) u)"),
    Parameter("floor", None, "share of uniform draws mixed in"),
    Parameter("warm_up_steps", None, "uniform for this many optimizer steps"),
    Parameter("within", None, "(low, high): the whole density inside this range of unit time"),
    Parameter("min_timestep", None, "the same range in timesteps, lower end"),
    Parameter("max_timestep", None, "upper end, excluded"),
    Parameter("stratified", None, "spread draws evenly over batch, ranks and accumulation"),
    Parameter("unbiased", None, "correct by reference / density, so that the objective is kept"),
)
"""Keywords that every sampler takes: each is a combinator, applied in this order."""

AMBIGUOUS = {
    "log-normal": "Kim et al.'s log-normal over timesteps is 'logit-normal'; EDM's is 'log-normal-sigma'",
}
"""Names that two papers use for different things."""
AMBIGUOUS["lognormal"] = AMBIGUOUS["lognorm"] = AMBIGUOUS["log-normal"]


def canonical(name: str) -> str:
    """Lower case with hyphens: logit_normal and Logit-Normal are one name."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


@lru_cache(maxsize=1)
def all_entries() -> dict[tuple[Kind, str], Entry]:
    """Every entry by kind and name: ours, and what installed packages register.

    A package registers with an entry point in the group stepwell.process, .sampler or .weighting. It
    cannot replace one of our names: results must mean the same on every machine.
    """
    found = {(entry.kind, entry.name): entry for entry in ENTRIES}
    for kind in KINDS:
        for point in entry_points(group=f"stepwell.{kind}"):
            found.setdefault((kind, canonical(point.name)), _foreign(kind, point))
    return found


def _foreign(kind: Kind, point: EntryPoint) -> Entry:
    package = point.dist.name if point.dist else "an installed package"
    return Entry(kind, canonical(point.name), point.value, f"registered by {package}", package)


def names(kind: Kind) -> list[str]:
    """The names of one kind, ours first, in the catalogue's order."""
    return [name for of_kind, name in all_entries() if of_kind == kind]


def find(kind: Kind, name: str) -> Entry:
    """The entry of a name or alias, or an error that says what there is."""
    if not isinstance(name, str):
        raise InvalidParameter(f"a {kind} is named by a string such as {names(kind)[0]!r}, not {name!r}.")
    wanted = canonical(name)
    entries = all_entries()
    if (kind, wanted) in entries:
        return entries[kind, wanted]
    for entry in entries.values():
        if entry.kind == kind and wanted in entry.aliases:
            return entry
    if kind == "sampler" and wanted in AMBIGUOUS:
        raise UnknownName(f"{name!r} means two things: {AMBIGUOUS[wanted]}.")
    for other in KINDS:
        if (other, wanted) in entries:
            raise UnknownName(
                f"{name!r} is a {other}, not a {kind}: use stepwell.{other}({name!r}). "
                f"Known as a {kind}: {', '.join(names(kind))}."
            )
    raise unknown(kind, name, names(kind))


def split_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """`name:key=value,key=value` as a name and its parameters."""
    name, _, rest = spec.partition(":")
    pairs = [item for item in rest.split(",") if item] if rest else []
    return name, dict(split_pair(pair) for pair in pairs)


def split_pair(pair: str) -> tuple[str, Any]:
    """`key=value` with a Python literal as value, or else a string."""
    key, equals, value = pair.partition("=")
    if not equals or not key:
        raise InvalidParameter(f"{pair!r} is not of the form key=value.")
    return key, literal(value)


def literal(text: str) -> Any:
    """A number, true, false, none, a tuple or list of these; anything else is the text itself."""
    named = {"true": True, "false": False, "none": None}
    if text.lower() in named:
        return named[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text

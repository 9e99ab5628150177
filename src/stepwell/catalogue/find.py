"""The catalogue: its entries, those that installed packages add, and the way from a name to an entry."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from stepwell.catalogue.entry import KINDS, Entry, Kind, Parameter
from stepwell.catalogue.processes import PROCESSES as PROCESSES
from stepwell.catalogue.samplers import SAMPLERS as SAMPLERS
from stepwell.catalogue.weightings import WEIGHTINGS as WEIGHTINGS
from stepwell.core.errors import InvalidParameter, UnknownName, unknown

ENTRIES = PROCESSES + SAMPLERS + WEIGHTINGS

SHAPING = (
    Parameter("shift", None, "towards noise for s > 1: u -> s u / (1 + (s - 1) u)"),
    Parameter("floor", None, "share of draws that are uniform"),
    Parameter("warm_up_steps", None, "uniform draws for this many optimizer steps"),
    Parameter("within", None, "(low, high): the whole density inside this range of unit time"),
    Parameter("min_timestep", None, "the same range in timesteps, lower end"),
    Parameter("max_timestep", None, "upper end, excluded"),
    Parameter("stratified", None, "spread draws evenly over batch, ranks and accumulation steps"),
    Parameter("unbiased", None, "correct by reference / density, so that the objective is kept"),
)
"""Keywords that every sampler takes: each is a combinator, applied in this order."""

_TWO_MEANINGS = "Kim et al.'s log-normal over timesteps is 'logit-normal'; EDM's is 'log-normal-sigma'"
AMBIGUOUS = dict.fromkeys(("log-normal", "lognormal", "lognorm"), _TWO_MEANINGS)
"""Names that two papers use for different samplers."""


def canonical(name: str) -> str:
    """Lower case with hyphens: logit_normal and Logit-Normal are one name."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


@lru_cache(maxsize=1)
def all_entries() -> dict[tuple[Kind, str], Entry]:
    """Every entry by kind and name: ours, and what installed packages register.

    A package registers with an entry point in the group stepwell.process, .sampler or .weighting. It
    cannot replace one of our names: results must mean the same on every machine.
    """
    entries = {(entry.kind, entry.name): entry for entry in ENTRIES}
    for kind in KINDS:
        for point in entry_points(group=f"stepwell.{kind}"):
            entries.setdefault((kind, canonical(point.name)), _registered(kind, point))
    return entries


def _registered(kind: Kind, point: EntryPoint) -> Entry:
    package = point.dist.name if point.dist else "an installed package"
    return Entry(kind, canonical(point.name), point.value, f"registered by {package}", package)


def names(kind: Kind) -> list[str]:
    """The names of one kind, ours first, in the catalogue's order."""
    return [name for of_kind, name in all_entries() if of_kind == kind]


def kinds_of(name: str) -> list[Kind]:
    """The kinds that have an entry of this name or alias: speed is a sampler and a weighting."""
    return [kind for kind in KINDS if _lookup(kind, name) is not None]


def find(kind: Kind, name: str) -> Entry:
    """The entry of a name or alias, or an error that lists what there is."""
    if not isinstance(name, str):
        raise InvalidParameter(f"a {kind} is named by a string such as {names(kind)[0]!r}, not {name!r}.")
    entry = _lookup(kind, name)
    if entry is not None:
        return entry
    if kind == "sampler" and canonical(name) in AMBIGUOUS:
        raise UnknownName(f"{name!r} means two things: {AMBIGUOUS[canonical(name)]}.")
    for other in KINDS:
        if (other, canonical(name)) in all_entries():
            raise UnknownName(
                f"{name!r} is a {other}, not a {kind}: use stepwell.{other}({name!r}). "
                f"Known as a {kind}: {', '.join(names(kind))}."
            )
    raise unknown(kind, name, names(kind))


def _lookup(kind: Kind, name: str) -> Entry | None:
    wanted, entries = canonical(name), all_entries()
    aliased = (entry for entry in entries.values() if entry.kind == kind and wanted in entry.aliases)
    return entries.get((kind, wanted)) or next(aliased, None)

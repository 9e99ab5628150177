"""From names to objects: `stepwell.process`, `stepwell.sampler`, `stepwell.weighting`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from stepwell.catalogue.entry import Entry
from stepwell.catalogue.find import SHAPING, find, split_spec
from stepwell.core import require
from stepwell.core.density import Uniform
from stepwell.core.errors import InvalidParameter, Unsupported, unknown
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import TimestepSampler
from stepwell.processes.scheduler import process_from
from stepwell.samplers.combinators import mix, stratified, unbiased, warm_up
from stepwell.samplers.static import Static
from stepwell.samplers.warped import shift, within
from stepwell.weightings import Weighting

_SHAPING = tuple(parameter.name for parameter in SHAPING)
_SHAPING_SPELLINGS = {"discrete_flow_shift": "shift"}


def process(name: str, **parameters: Any) -> NoiseProcess:
    """The noise process of a name that `stepwell ls` prints."""
    entry = find("process", name)
    built: NoiseProcess = _call(entry, {}, _translated(entry, parameters, {}))
    return built


def weighting(name: str, **parameters: Any) -> Weighting:
    """The loss weighting of a name that `stepwell ls` prints."""
    entry = find("weighting", name)
    built: Weighting = _call(entry, {}, _translated(entry, parameters, {}))
    return built


def weighting_of(spec: str) -> Weighting:
    """The weighting of NAME or NAME:key=value,..."""
    name, given = split_spec(spec)
    return weighting(name, **given)


def sampler(name: str, process: NoiseProcess | str | Any, **parameters: Any) -> TimestepSampler:
    """The timestep sampler of a name that `stepwell ls` prints, for a process, its name or a scheduler.

    Beside its own parameters every sampler takes those of `stepwell.catalogue.find.SHAPING`.
    """
    entry = find("sampler", name)
    over = as_process(process)
    given = _translated(entry, parameters, _SHAPING_SPELLINGS)
    own = {parameter.name for parameter in entry.parameters}
    shaping = {key: given.pop(key) for key in _SHAPING if key in given and key not in own}
    built = _shaped(_call(entry, {"process": over}, given), over, entry, shaping)
    if built.probe is not None and built.probe.target is not None:
        # Samplers know no weightings: a name that there is not would be noticed at the first measurement.
        weighting_of(built.probe.target)
    return built


def as_process(given: NoiseProcess | str | Any) -> NoiseProcess:
    """A process from itself, its name, `name:key=value,...` or a scheduler object."""
    if not isinstance(given, str):
        return process_from(given)
    name, parameters = split_spec(given)
    return process(name, **parameters)


def _translated(entry: Entry, given: Mapping[str, Any], more: Mapping[str, str]) -> dict[str, Any]:
    """Parameters under our names; the same one twice is an error."""
    result: dict[str, Any] = {}
    for key, value in given.items():
        ours = entry.spellings.get(key, more.get(key, key))
        if ours in result:
            raise InvalidParameter(f"{entry.name} got {ours!r} twice: {key!r} is another spelling of it.")
        result[ours] = value
    return result


def _call(entry: Entry, leading: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    factory = entry.factory()
    signature = inspect.signature(factory)
    accepted = [key for key in signature.parameters if key not in entry.fixed and key not in leading]
    shaping = _SHAPING if entry.kind == "sampler" else ()
    for key in given:
        if key not in accepted:
            raise InvalidParameter(str(unknown(f"parameter of {entry.name}", key, {*accepted, *shaping})))
    for key in accepted:
        if signature.parameters[key].default is inspect.Parameter.empty and key not in given:
            raise InvalidParameter(f"{entry.name} needs {key}: write {entry.name} with {key}=...")
    return factory(**leading, **entry.fixed, **given)


def _shaped(
    base: TimestepSampler, process: NoiseProcess, entry: Entry, shaping: dict[str, Any]
) -> TimestepSampler:
    """Apply combinators from the inside out: densities first, then how they are drawn and corrected."""
    result = base
    if shaping.get("shift") is not None:
        result = shift(result, shaping["shift"], process)
    if shaping.get("floor") is not None:
        result = mix(result, Static(Uniform(), "uniform"), require.between("floor", shaping["floor"], 0, 1))
    if shaping.get("warm_up_steps") is not None:
        result = warm_up(result, shaping["warm_up_steps"])
    limits = _limits(process, shaping)
    if limits is not None:
        result = within(result, *limits)
    spreads = shaping.get("stratified")
    if entry.stratified if spreads is None else spreads:
        result = stratified(result)
    corrects = shaping.get("unbiased")
    if entry.unbiased if corrects is None else corrects:
        result = unbiased(result, process.reference)
    return result


def _limits(process: NoiseProcess, shaping: Mapping[str, Any]) -> tuple[float, float] | None:
    """The range of unit time that within, or min_timestep and max_timestep, ask for."""
    limits, low, high = (shaping.get(key) for key in ("within", "min_timestep", "max_timestep"))
    if low is None and high is None:
        if limits is None:
            return None
        if not isinstance(limits, (tuple, list)) or len(limits) != 2:
            raise InvalidParameter(f"within must be a pair (low, high) of unit times, not {limits!r}.")
        return require.unit_range("within", *limits)
    if limits is not None:
        raise InvalidParameter("give within or min_timestep and max_timestep, not both.")
    if process.timesteps is None or process.shift != 1:
        raise Unsupported(
            f"{process} does not count its timesteps evenly: give within=(low, high) in unit time instead."
        )
    total = process.timesteps
    first = 0 if low is None else require.count("min_timestep", low, least=0)
    last = total if high is None else require.count("max_timestep", high)
    if not first < last <= total:
        raise InvalidParameter(
            f"timesteps [{first}, {last}) are an empty range, or outside the process's [0, {total})."
        )
    return first / total, last / total

"""From names to objects: `stepwell.process`, `stepwell.sampler` and `stepwell.weighting`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepwell.catalogue.entry import Entry, Kind
from stepwell.catalogue.find import SHAPING
from stepwell.catalogue.spec import Spec
from stepwell.core import require
from stepwell.core.density import centres, edges
from stepwell.core.errors import InvalidParameter, Unsupported, unknown
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import TimestepSampler
from stepwell.processes.scheduler import process_from
from stepwell.samplers.combinators import mix_uniform, shift, stratified, unbiased, warm_up, within
from stepwell.weightings import LearnedWeighting, Weighting

_SHAPING = tuple(parameter.name for parameter in SHAPING)
_SHAPING_SPELLINGS = {"discrete_flow_shift": "shift"}
_CHECKED_TIMES = 64
"""Times at which what was built must have numbers."""


def process(name: str | Spec, **parameters: Any) -> NoiseProcess:
    """The noise process of a name that `stepwell ls` prints, or of NAME:key=value,..."""
    spec = _spec("process", name, parameters)
    built: NoiseProcess = _call(spec.entry, spec.parameters)
    u = centres(_CHECKED_TIMES)
    if not all(bool(scale.isfinite().all()) for scale in built.scales(u)) or bool(
        built.log_snr(u).isnan().any()
    ):
        raise InvalidParameter(
            f"{spec} has no signal and noise that floats can hold: give less extreme values."
        )
    built.written = str(spec)
    return built


def weighting(name: str | Spec, **parameters: Any) -> Weighting:
    """The loss weighting of a name that `stepwell ls` prints, or of NAME:key=value,..."""
    spec = _spec("weighting", name, parameters)
    built: Weighting = _call(spec.entry, spec.parameters)
    return built


def require_weights(weighting: Weighting, spec: str | Spec, process: NoiseProcess) -> None:
    """Refuse a weighting with weights on a process that no float holds, or that all are 0."""
    weights = weighting(process, process.grid())
    if not bool((weights.isfinite() & (weights >= 0)).all()) or not bool(
        weights.sum().isfinite() & (weights > 0).any()
    ):
        raise InvalidParameter(
            f"{spec} on {process} has weights that floats cannot hold: give less extreme values."
        )


def fixed_weighting(name: str | Spec) -> Weighting:
    """A weighting that does not learn: only such a one names an objective that runs can be measured by."""
    built = weighting(name)
    if isinstance(built, LearnedWeighting):
        raise Unsupported(
            f"{name} learns its weights, so its loss means something else in every run: train with it, and "
            "measure by a fixed weighting, such as simple, vlb or min-snr."
        )
    return built


def sampler(name: str | Spec, process: NoiseProcess | str | Spec | Any, **parameters: Any) -> TimestepSampler:
    """The sampler of a name that `stepwell ls` prints, or of NAME:key=value,..., for a process or scheduler.

    Beside its own parameters every sampler takes those of `stepwell.catalogue.find.SHAPING`.
    """
    spec, over = _spec("sampler", name, parameters), as_process(process)
    own = {parameter.name for parameter in spec.entry.parameters}
    shaping = {key: spec.parameters[key] for key in _SHAPING if key in spec.parameters and key not in own}
    rest = {key: value for key, value in spec.parameters.items() if key not in shaping}
    for key in ("stratified", "unbiased"):
        if shaping.get(key) is not None:
            require.boolean(key, shaping[key])
    base: TimestepSampler = _call(spec.entry, rest, process=over)
    base.written = str(spec)
    built = _shaped(base, over, spec.entry, shaping)
    masses = built.masses(edges(_CHECKED_TIMES))
    if not bool((masses.isfinite() & (masses >= 0)).all()) or not 0.99 < float(masses.sum()) < 1.01:
        raise InvalidParameter(f"{spec} has no density that floats can hold: give less extreme values.")
    if built.probe is not None and built.probe.target is not None:
        # Samplers know no weightings: an unknown target would only be noticed at the first measurement.
        weighting(built.probe.target)
    return built


def as_process(source: NoiseProcess | str | Spec | Any) -> NoiseProcess:
    """A process from itself, its name, NAME:key=value,... or a scheduler object."""
    return process(source) if isinstance(source, (str, Spec)) else process_from(source)


def _spec(kind: Kind, name: str | Spec, more: Mapping[str, Any]) -> Spec:
    """The spec of a name and keywords, its parameters under our names; the same one twice is an error."""
    spec = name if isinstance(name, Spec) else Spec.parse(kind, name)
    if spec.kind != kind:
        raise InvalidParameter(f"{spec} is a {spec.kind}, not a {kind}.")
    spellings = {**(_SHAPING_SPELLINGS if kind == "sampler" else {}), **spec.entry.spellings}
    parameters: dict[str, Any] = {}
    for key, value in (*spec.parameters.items(), *more.items()):
        ours = spellings.get(key, key)
        if ours in parameters:
            also = "" if ours == key else f": {key!r} is another spelling of it"
            raise InvalidParameter(f"{spec.name} got {ours!r} twice{also}.")
        parameters[ours] = value
    return replace(spec, parameters=parameters)


def _call(entry: Entry, parameters: Mapping[str, Any], **leading: Any) -> Any:
    """What the entry's factory makes of checked parameters."""
    factory = entry.factory()
    signature = inspect.signature(factory).parameters
    accepted = [key for key in signature if key not in entry.fixed and key not in leading]
    for key in parameters:
        if key not in accepted:
            known = {*accepted, *(_SHAPING if entry.kind == "sampler" else ())}
            raise InvalidParameter(str(unknown(f"parameter of {entry.name}", key, known)))
    parameters = {
        key: _typed(f"{key} of {entry.name}", value, signature[key].annotation)
        for key, value in parameters.items()
    }
    for key in accepted:
        if signature[key].default is inspect.Parameter.empty and key not in parameters:
            raise InvalidParameter(f"{entry.name} needs {key}: write {entry.name} with {key}=...")
    return factory(**leading, **entry.fixed, **parameters)


def _typed(name: str, value: Any, annotation: Any) -> Any:
    """The value, if it is of the factory's own type; numbers that no float holds are refused in any list."""
    kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if kind == "bool":
        return require.boolean(name, value)
    if kind == "float":
        return require.finite(name, value)
    if isinstance(value, (tuple, list)):
        for one in value:
            _typed(name, one, "")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        require.finite(name, value)
    return value


def _shaped(
    base: TimestepSampler, process: NoiseProcess, entry: Entry, shaping: dict[str, Any]
) -> TimestepSampler:
    """Apply combinators from the inside out: densities first, then how they are drawn and corrected."""
    result = base
    if shaping.get("shift") is not None:
        result = shift(result, require.finite("shift", shaping["shift"]), process)
    if shaping.get("floor") is not None:
        result = mix_uniform(result, shaping["floor"], "floor")
    if shaping.get("warm_up_steps") is not None:
        result = warm_up(result, shaping["warm_up_steps"])
    limits = _limits(process, shaping)
    if limits is not None:
        result = within(result, *limits)
    spreads = shaping.get("stratified")
    if entry.stratified if spreads is None else spreads:
        result = stratified(result)
    result.written = base.written  # before the correction, which may refuse it by its name
    corrects = shaping.get("unbiased")
    if entry.unbiased if corrects is None else corrects:
        result = unbiased(result, process.reference)
    result.written = base.written
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

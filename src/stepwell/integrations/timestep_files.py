"""The writers of `host_formats`: each makes a text of a density and a list of unit times u [N]."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from stepwell.core.density import centres, edges
from stepwell.core.errors import Unsupported
from stepwell.integrations.timestep_lists import TimestepDensity

KNOTS = 65
"""Weights of a cubic density: a logit-normal(0, 1) is then met to 1e-4 nats."""


def as_csv(density: TimestepDensity, u: Tensor) -> str:
    """step, timestep, sigma, u, weight."""
    columns = _columns(density, u)
    return _rows(("step", *columns), zip(range(len(u)), *columns.values(), strict=True))


def as_json(density: TimestepDensity, u: Tensor) -> str:
    """The list and the density, with their names."""
    columns = _columns(density, u)
    known = {"sampler": density.name, "process": repr(density.process)}
    return json.dumps({**known, "list": columns, "density": _density_columns(density)}) + "\n"


def as_list(density: TimestepDensity, u: Tensor) -> str:
    """One timestep per line."""
    return "".join(f"{value}\n" for value in _columns(density, u)["timestep"])


def as_sigmas(density: TimestepDensity, u: Tensor) -> str:
    """One sigma per line."""
    return "".join(f"{value}\n" for value in _columns(density, u)["sigma"])


def as_density(density: TimestepDensity, u: Tensor) -> str:
    """timestep, u, probability, weight."""
    columns = _density_columns(density)
    return _rows(tuple(columns), zip(*columns.values(), strict=True))


def as_simpletuner(density: TimestepDensity, u: Tensor) -> str:
    """Part of SimpleTuner's config.json; neither its shift nor its own densities act on a list."""
    sigmas = ",".join(map(str, _columns(density, u)["sigma"]))
    return _config({"flow_custom_timesteps": sigmas, "flow_timesteps_mode": "round-robin"})


def as_simpletuner_cubic(density: TimestepDensity, u: Tensor) -> str:
    """Part of SimpleTuner's config.json; its shift would act on top, and is switched off."""
    weights = [_short(weight) for weight in cubic_knots(density).tolist()]
    shift = {"flow_schedule_shift": 0, "flow_schedule_auto_shift": False}
    return _config({"flow_cubic_schedule_weights": weights, **shift})


def cubic_knots(density: TimestepDensity) -> Tensor:
    """The density [KNOTS] around evenly spaced sigmas: its mean over the half intervals at both sides."""
    borders, masses = density.over_sigma()
    cumulative = torch.cat([masses.new_zeros(1), masses.cumsum(0)])
    sides = torch.cat([edges(1)[:1], centres(KNOTS - 1), edges(1)[1:]])
    after = torch.searchsorted(borders, sides).clamp(1, len(masses))
    inside = (sides - borders[after - 1]) / (borders[after] - borders[after - 1])
    below = torch.lerp(cumulative[after - 1], cumulative[after], inside)
    return below.diff() / sides.diff()


def as_kohya_dynamic(density: TimestepDensity, u: Tensor) -> str:
    """One range per step, so narrow that a step has its share of the density and no more."""
    count = density.process.timesteps
    if count is None:
        raise Unsupported(f"{density.process} does not count its timesteps.")
    order = u.argsort()
    borders = density.table.quantile(edges(len(u)).clamp(1e-12, 1 - 1e-12)) * count
    ranges = torch.empty(len(u), 2, dtype=torch.long)
    ranges[order, 0] = borders[:-1].round().long().clamp(max=count - 1)
    ranges[order, 1] = borders[1:].round().long()
    # A range between two borders of the same timestep holds the one that the list has there.
    empty = ranges[:, 1] <= ranges[:, 0]
    ranges[empty, 0] = (u[empty] * count).long().clamp(max=count - 1)
    ranges[empty, 1] = ranges[empty, 0] + 1
    entries = ", ".join(f"({step}, {low}, {end})" for step, (low, end) in enumerate(ranges.tolist()))
    return f'--dynamic_timestep_schedule="[{entries}]"\n'


def _columns(density: TimestepDensity, u: Tensor) -> dict[str, list[float]]:
    process = density.process
    timesteps = process.time(u).tolist()
    return {
        "timestep": [_short(timestep) for timestep in timesteps],
        "sigma": [_short(sigma) for sigma in process.scales(u)[1].tolist()],
        "u": [_short(value) for value in u.tolist()],
        "weight": [_short(weight) for weight in density.weights(u).tolist()],
    }


def _density_columns(density: TimestepDensity) -> dict[str, list[float]]:
    u = density.process.grid()
    probabilities = density.probabilities()
    weights = density.process.reference.masses(edges(len(u))) / probabilities
    weights = torch.where(probabilities > 0, weights, 0.0)
    return {
        "timestep": [_short(timestep) for timestep in density.process.time(u).tolist()],
        "u": [_short(value) for value in u.tolist()],
        "probability": [_short(value) for value in probabilities.tolist()],
        "weight": [_short(value) for value in weights.tolist()],
    }


def _short(value: float) -> float:
    """Six digits: a file of thousands is read by people too."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _rows(header: Sequence[str], rows: Iterable[Sequence[float]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _config(values: dict[str, object]) -> str:
    return json.dumps(values, indent=2) + "\n"

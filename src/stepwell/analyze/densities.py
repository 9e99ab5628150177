"""The density of a method's draws, and with its weights: by formula, or as a run recorded it over training.

The paper's Figs. 5 and 6 (Kim et al. 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepwell.catalogue import build
from stepwell.catalogue.spec import Spec
from stepwell.core.density import centres
from stepwell.core.errors import StepwellError
from stepwell.core.process import NoiseProcess
from stepwell.core.reading import regular_file
from stepwell.core.sampler import TimestepSampler, pmf
from stepwell.runs.directory import METRICS, records
from stepwell.weightings import LearnedWeighting, Weighting

BINS = 50
"""Points in the middles of equal bins of unit time, as many as a run records."""


@dataclass(frozen=True)
class Profile:
    """A method on a process over [T]: one value per timestep, or per thousandth of continuous time."""

    parts: tuple[str, str, str]
    """Sampler, weighting and process, as written."""
    source: str
    learns: bool
    unbiased: bool
    process: NoiseProcess
    u: Tensor
    density: Tensor
    """Relative to uniform."""
    effective: Tensor
    """Density x weight on the network's own loss, with mean 1."""

    @property
    def title(self) -> str:
        """All three parts in one line."""
        return " · ".join(self.parts)

    def plain(self) -> dict[str, Any]:
        """The values for JSON."""
        return {
            "title": self.title,
            "source": self.source,
            "learns": self.learns,
            "unbiased": self.unbiased,
            "timesteps": self.process.timesteps,
            "u": self.u.tolist(),
            "log_snr": self.process.log_snr(self.u).tolist(),
            "density": self.density.tolist(),
            "effective": self.effective.tolist(),
        }


def profile(sampler: Spec, weighting: Spec, process: Spec) -> Profile:
    """Build a sampler, weighting and process, and evaluate them over time."""
    over = build.process(process)
    drawing = build.sampler(sampler, over)
    entry, u = sampler.entry, over.grid()
    density = pmf(drawing, over) * len(u)
    weights = build.weighting(weighting)
    build.require_weights(weights, weighting, over)
    effective = _effective(drawing, density, weights(over, u), u)
    return Profile(
        parts=(_written(sampler), f"weighting {_written(weighting)}", _written(process)),
        source=f"{entry.summary} ({entry.source})",
        learns=drawing.learns or weighting.entry.learns,
        unbiased=drawing.reference is not None,
        process=over,
        u=u,
        density=density,
        effective=effective / effective.mean().clamp(min=torch.finfo(effective.dtype).tiny),
    )


@dataclass(frozen=True)
class Moment:
    """A method's densities at one step of training."""

    step: int
    density: tuple[float, ...]
    """[K]: of the draws; uniform is 1."""
    effective: tuple[float, ...]
    """[K]: weight x density with mean 1; for corrected draws, the objective's."""


@dataclass(frozen=True)
class Densities:
    """A method's densities over training; by formula there is one moment."""

    name: str
    corrected: bool
    """Whether importance weights undo the density, so that the objective is unchanged."""
    learns: bool
    recorded: bool
    """Whether they were recorded by a run; else they follow from the formula."""
    timesteps: int | None
    moments: tuple[Moment, ...]

    @property
    def compared(self) -> tuple[tuple[float, ...], ...]:
        """[moments][K]: the effective density (Fig. 5); for corrected draws, the density of the draws."""
        return tuple(at.density if self.corrected else at.effective for at in self.moments)

    def selected(self) -> tuple[Moment, ...]:
        """The first, middle and last moment, without repeats."""
        last = len(self.moments) - 1
        return tuple(self.moments[place] for place in sorted({0, last // 2, last}))


def of_method(name: str, sampler: TimestepSampler, weighting: Weighting, process: NoiseProcess) -> Densities:
    """A method's densities by formula, before training."""
    u = centres(BINS)
    density = sampler.density(u).double()
    effective = _effective(sampler, density, weighting(process, u).double(), u)
    if not bool(effective.isfinite().all()) or float(effective.sum()) <= 0:
        raise StepwellError(f"{name} has no effective density: its weights are not finite, or all 0.")
    moment = Moment(0, tuple(density.tolist()), tuple((effective / effective.mean()).tolist()))
    corrected, learns = (
        sampler.reference is not None,
        sampler.learns or isinstance(weighting, LearnedWeighting),
    )
    return Densities(name, corrected, learns, False, process.timesteps, (moment,))


def of_run(name: str, path: Path, sampler: TimestepSampler, process: NoiseProcess) -> Densities:
    """A method's densities as a run recorded them at its evaluations (sampler and process of its recipe)."""
    moments: list[Moment] = []
    if (path / METRICS).exists():
        regular_file(path / METRICS)
    try:
        for record in records(path):
            if record.get("kind") == "evaluation" and "density" in record:
                moments.append(_moment(record))
    except FileNotFoundError:
        raise StepwellError(f"{path} has no {METRICS}: it has not been trained yet.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StepwellError(f"{path / METRICS} has an invalid record: {error}.") from None
    if not moments:
        raise StepwellError(
            f"{path} has recorded no density: they come with evaluations, so train it with evaluate_every=N."
        )
    corrected = sampler.reference is not None
    return Densities(name, corrected, sampler.learns, True, process.timesteps, tuple(moments))


def _effective(sampler: TimestepSampler, density: Tensor, weight: Tensor, u: Tensor) -> Tensor:
    """Density x weight; corrected draws count like draws from the reference."""
    return (density if sampler.reference is None else sampler.reference.pdf(u)) * weight


def _moment(record: dict[str, Any]) -> Moment:
    density, effective = ([float(value) for value in record[key]] for key in ("density", "effective_weight"))
    if len(density) != len(effective) or not density:
        raise ValueError(f"{len(density)} densities and {len(effective)} weights at step {record['step']}")
    return Moment(int(record["step"]), tuple(density), tuple(effective))


def _written(spec: Spec) -> str:
    inside = ", ".join(f"{key}={value}" for key, value in spec.parameters.items())
    return f"{spec.name}({inside})" if inside else spec.name

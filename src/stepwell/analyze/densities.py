"""Where methods look, over training: the paper's Figs. 5 and 6 (Kim et al. 2025), for any run or formula."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepwell.core.density import centres
from stepwell.core.errors import StepwellError
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import TimestepSampler
from stepwell.runs.directory import METRICS, records
from stepwell.weightings import Weighting

BINS = 50
"""As many points, in the middles of equal bins of unit time, as a run records."""


@dataclass(frozen=True)
class Moment:
    """Where a method looks at one moment of training."""

    step: int
    density: tuple[float, ...]
    """[K]: of the draws; uniform is 1."""
    effective: tuple[float, ...]
    """[K]: weight x density with mean 1, as a density; what corrected draws weigh is the objective's."""


@dataclass(frozen=True)
class Densities:
    """A method's densities: one moment if nothing is known of its training."""

    name: str
    corrected: bool
    """Whether importance weights undo the density: it then says nothing about the objective."""
    learns: bool
    recorded: bool
    """Whether a run has seen them; if not, they are the formula's."""
    timesteps: int | None
    moments: tuple[Moment, ...]

    @property
    def compared(self) -> tuple[tuple[float, ...], ...]:
        """What is compared with other methods, [moments][K]: weights count as probabilities (Fig. 5).

        Corrected draws weigh as if they had been drawn evenly, and their density is what sets them apart.
        """
        return tuple(at.density if self.corrected else at.effective for at in self.moments)

    def told(self) -> tuple[Moment, ...]:
        """The start, the middle and the end, as far as they differ."""
        last = len(self.moments) - 1
        return tuple(self.moments[place] for place in sorted({0, last // 2, last}))

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def of_method(name: str, sampler: TimestepSampler, weighting: Weighting, process: NoiseProcess) -> Densities:
    """A method by its formula, as it is before training."""
    u = centres(BINS)
    density = sampler.density(u).double()
    # Corrected draws weigh as the reference does, whatever the density.
    drawn = density if sampler.reference is None else sampler.reference.pdf(u).double()
    effective = drawn * weighting(process, u).double()
    if not bool(effective.isfinite().all()) or float(effective.sum()) <= 0:
        raise StepwellError(f"{name} has no effective density: its weights are not finite, or all 0.")
    moment = Moment(0, tuple(density.tolist()), tuple((effective / effective.mean()).tolist()))
    return Densities(name, sampler.reference is not None, sampler.learns, False, process.timesteps, (moment,))


def of_run(name: str, path: Path, sampler: TimestepSampler, process: NoiseProcess) -> Densities:
    """A method as a run recorded it at every evaluation; `sampler` and `process` are those of its recipe."""
    found: list[Moment] = []
    try:
        for record in records(path):
            if record.get("kind") == "evaluation" and "density" in record:
                found.append(_moment(record))
    except FileNotFoundError:
        raise StepwellError(f"{path} has no {METRICS}: it has not been trained yet.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StepwellError(f"{path / METRICS} has a record that no run writes: {error}.") from None
    if not found:
        raise StepwellError(
            f"{path} has recorded no density: they come with evaluations, so train it with evaluate_every=N."
        )
    return Densities(
        name, sampler.reference is not None, sampler.learns, True, process.timesteps, tuple(found)
    )


def _moment(record: dict[str, Any]) -> Moment:
    density, effective = ([float(value) for value in record[key]] for key in ("density", "effective_weight"))
    if len(density) != len(effective) or not density:
        raise ValueError(f"{len(density)} densities and {len(effective)} weights at step {record['step']}")
    return Moment(int(record["step"]), tuple(density), tuple(effective))

"""Learning curves of finished runs, and what they say about time to a target."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.runs.directory import RECIPE, records


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run."""

    path: Path
    method: str
    seed: int
    evaluations: tuple[dict[str, Any], ...]

    def values(self, name: str) -> list[float]:
        """One metric over the run's evaluations."""
        return [float(record[name]) for record in self.evaluations]


def read(path: Path) -> Curve:
    """A run directory's curve."""
    recipe = json.loads((path / RECIPE).read_text())
    found = tuple(record for record in records(path) if record["kind"] == "evaluation")
    return Curve(path, recipe["method"], recipe["seed"], found)


def smoothed(values: Sequence[float], window: int = 3) -> list[float]:
    """Means over the last `window` values, so that no single evaluation makes a result."""
    return [
        sum(values[max(0, index - window + 1) : index + 1]) / min(window, index + 1)
        for index in range(len(values))
    ]


def reached(curve: Curve, metric: str, target: float, axis: str) -> float:
    """Where on `axis` (seconds, images, steps) the smoothed metric first falls to the target; or infinity."""
    positions, values = curve.values(axis), smoothed(curve.values(metric))
    for index, value in enumerate(values):
        if value <= target:
            if index == 0 or values[index - 1] == value:
                return positions[index]
            share = (values[index - 1] - target) / (values[index - 1] - value)
            return positions[index - 1] + share * (positions[index] - positions[index - 1])
    return math.inf


def time_ratio(curve: Curve, baseline: Curve, metric: str, axis: str = "seconds") -> float:
    """Time to the baseline's final smoothed value, as a share of the baseline's own time to it."""
    target = smoothed(baseline.values(metric))[-1]
    return reached(curve, metric, target, axis) / reached(baseline, metric, target, axis)

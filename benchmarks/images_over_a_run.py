"""From shares of images at moments of a run to the share over the run, as a study measures it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

BEST, OWN = "forecast/best_images", "forecast/images"
"""Of the best timesteps, and of those that the run draws."""


def over_the_run(ratios: Sequence[float]) -> tuple[float, float]:
    """(For the same loss, to the end) of a run whose equal parts need these shares of the images."""
    points = 400
    total, logs = 0.0, []
    for place in range(points):
        share = (place + 0.5) / points
        total += ratios[min(int(share * len(ratios)), len(ratios) - 1)] / points
        # As compare/curves.py: after the first tenth, every loss by the images spent around it.
        if share > 0.1:
            logs.append(math.log(total / share))
    return math.exp(sum(logs) / len(logs)), total


def forecasts(evaluations: Sequence[Mapping[str, Any]], of: str = BEST) -> list[float]:
    """What a run's own forecasts said, of the best timesteps or of its own, at each evaluation."""
    values = [float(row.get(of, math.nan)) for row in evaluations]
    # It says nothing before its third measurement.
    first = next((value for value in values if not math.isnan(value)), math.nan)
    return [first if math.isnan(value) else value for value in values]

"""One method against another on one workload: every score, over the seeds they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepwell.compare.curves import area_ratio, end_ratio, reached, smoothed, time_ratio
from stepwell.compare.outcome import Outcome
from stepwell.compare.score import Ratio, paired

BITS = "bits per dimension"
DISTANCE = "Fréchet distance"


@dataclass(frozen=True)
class Judgement:
    """A method over what it is judged against; everything below 1 is better."""

    workload: str
    method: str
    against: str
    metric: str
    images: Ratio
    """To the other's final smoothed value, over its own; and so on."""
    seconds: Ratio
    end: Ratio
    area: Ratio
    bits: Ratio
    distance: Ratio
    per_seed: tuple[float, ...]
    """The ratios behind `images`."""


def judge(workload: str, mine: Sequence[Outcome], theirs: Sequence[Outcome], metric: str) -> Judgement:
    """All scores of one method against another."""
    others = {run.seed: run for run in theirs}
    pairs = [(run, others[run.seed]) for run in mine if run.seed in others]
    images = tuple(time_ratio(run, other, metric, "images") for run, other in pairs)
    return Judgement(
        workload,
        mine[0].method,
        theirs[0].method,
        metric,
        paired(images),
        paired([time_ratio(run, other, metric, "seconds") for run, other in pairs]),
        paired([end_ratio(run, other, metric) for run, other in pairs]),
        paired([area_ratio(run, other, metric) for run, other in pairs]),
        _scored(pairs, bits_of),
        _scored(pairs, distance_of),
        images,
    )


def _scored(pairs: Sequence[tuple[Outcome, Outcome]], value: Callable[[Outcome], float]) -> Ratio:
    found = [(value(run), value(other)) for run, other in pairs]
    return paired([one / other for one, other in found if math.isfinite(one) and other > 0])


def bits_of(run: Outcome) -> float:
    """Bits per dimension of a scored run; NaN where they have no meaning."""
    return float(run.score.get("bits_per_dimension", {}).get("total", math.nan))


def distance_of(run: Outcome) -> float:
    """The Fréchet distance of a scored run, on whatever features its recipe names; or NaN."""
    return math.nan if run.distances is None else float(run.distances[1]["frechet_distance"])


def seconds_to(run: Outcome, baseline: Outcome, metric: str) -> float:
    """Training seconds to the baseline's final smoothed value; infinite if it was not reached."""
    return reached(run, metric, smoothed(baseline.values(metric))[-1], "seconds")

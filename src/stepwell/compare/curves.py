"""Two learning curves against each other: images for the same loss, images to the other's end, the ends.

Both are read at the steps that both were evaluated at, so neither is searched more finely than the other.
`benchmarks/false_claims.py` chose the measure by simulation; docs/results.md explains it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from stepwell.compare.results import Outcome
from stepwell.runs.metrics import QUADRATURE

WARM_UP = 0.1
"""Share of training that says little about a method: every loss falls fast there."""
END = 0.1
"""Share of training over which the final loss is averaged, so that it does not rest on one evaluation."""
FEWEST_EVALUATIONS = 4
"""Fewer of them after warm-up are no curve."""
FLAT = 0.2
"""A curve has flattened out where it goes on to fall at less than this share of its speed until there."""
LEAST_OVERLAP = 0.25
"""The losses that both runs went through, as a share of those that either did."""


def at_common_steps(run: Outcome, other: Outcome) -> tuple[Outcome, Outcome]:
    """Both runs with only the evaluations that both have: at the same step, by the same quadrature."""
    one, two = ({(record["step"], record.get(QUADRATURE)) for record in r.evaluations} for r in (run, other))
    common = {step for step, _ in one & two}
    return _only(run, common), _only(other, common)


def _only(run: Outcome, steps: Iterable[int]) -> Outcome:
    return replace(run, evaluations=tuple(record for record in run.evaluations if record["step"] in steps))


def comparable(run: Outcome, other: Outcome) -> bool:
    """Whether two runs share an evaluation in the last tenth of the shorter one."""
    common = at_common_steps(run, other)[0].evaluations
    ends = min(run.evaluations[-1]["step"], other.evaluations[-1]["step"])
    return bool(common) and common[-1]["step"] >= max(1, (1 - END) * ends)


def after_warm_up(run: Outcome, other: Outcome) -> tuple[Outcome, Outcome]:
    """Two runs with the same steps, without the learning rate's warm-up and the first tenth."""
    steps = [record["step"] for record in run.evaluations]
    warm_up = max(run.recipe.warm_up_steps, other.recipe.warm_up_steps, WARM_UP * max(steps, default=0), 1)
    late = {step for step in steps if step >= warm_up}
    return _only(run, late), _only(other, late)


def final(run: Outcome, key: str) -> float:
    """The mean loss over the last tenth of training; NaN if one of them is not finite."""
    begin = (1 - END) * run.evaluations[-1]["step"]
    values = _only(run, {record["step"] for record in run.evaluations if record["step"] >= begin}).values(key)
    return sum(values) / len(values)


def end_ratio(run: Outcome, other: Outcome, key: str) -> float:
    """The final loss over the other's, both where the shorter run ends; NaN where one diverged."""
    one, two = at_common_steps(run, other)
    own, others = final(one, key), final(two, key)
    return own / others if others > 0 else math.nan


def same_loss_ratio(run: Outcome, other: Outcome, key: str, axis: str = "images") -> float:
    """Images (or seconds) to a loss over the other's to the same loss: the geometric mean over losses.

    Over the losses that both go through after warm-up, until one of the runs has flattened out; a loss counts
    by the images that the two spent around it, so late training counts most. Swapping the runs gives the
    reciprocal. NaN where there are too few such losses: then only the ends can be compared.
    """
    pair = after_warm_up(*at_common_steps(run, other))
    if len(pair[0].evaluations) < FEWEST_EVALUATIONS:
        return math.nan
    one, two = (Falling.of(each, key, axis) for each in pair)
    if one is None or two is None:
        return math.nan
    top, bottom = min(one.logs[0], two.logs[0]), max(one.flat_from(), two.flat_from())
    either = max(one.logs[0], two.logs[0]) - min(one.logs[-1], two.logs[-1])
    if not top - bottom > LEAST_OVERLAP * either:
        return math.nan
    # Between these losses both times are straight lines.
    losses = sorted({top, bottom, *(log for log in one.logs + two.logs if bottom < log < top)}, reverse=True)
    times = [(one.reaches(loss), two.reaches(loss)) for loss in losses]
    total = spent = 0.0
    for (a, b), (later_a, later_b) in pairwise(times):
        both = math.exp(later_a) - math.exp(a) + math.exp(later_b) - math.exp(b)
        total += both * (a - b + later_a - later_b) / 2
        spent += both
    return math.exp(total / spent)


def to_end_ratio(run: Outcome, other: Outcome, key: str, axis: str = "images") -> float:
    """Images (or seconds) to the other's final loss over the other's own; infinite if it is never reached."""
    one, two = at_common_steps(run, other)
    target = final(two, key)
    return reached(one, key, target, axis) / reached(two, key, target, axis)


def reached(run: Outcome, key: str, target: float, axis: str) -> float:
    """Where on `axis` (seconds, images, step) the curve first falls to a loss; or infinity."""
    curve = Falling.of(run, key, axis)
    return math.inf if curve is None or not target > 0 else math.exp(curve.reaches(math.log(target)))


Point = tuple[float, float, int]
"""Sums of the logarithms of times and losses of some evaluations, and their number."""


def _falls(before: Point, after: Point) -> bool:
    """Whether one point is later and lower than another."""
    later = after[0] / after[2] > before[0] / before[2]
    return later and after[1] / after[2] < before[1] / before[2]


@dataclass(frozen=True)
class Falling:
    """A learning curve made to fall, in logarithms: neighbours that rise are averaged into one point."""

    times: tuple[float, ...]
    """Logarithms of images or seconds, rising."""
    logs: tuple[float, ...]
    """Logarithms of the loss, falling."""

    @classmethod
    def of(cls, run: Outcome, key: str, axis: str) -> Falling | None:
        """The curve of a run after step 0 (isotonic regression, Ayer et al. 1955); None where it diverged."""
        points: list[Point] = []
        for time, loss in zip(run.values(axis), run.values(key), strict=True):
            if not time > 0:
                continue
            if not (loss > 0 and math.isfinite(loss)):
                return None
            sums = (math.log(time), math.log(loss), 1)
            while points and not _falls(points[-1], sums):
                before = points.pop()
                sums = (before[0] + sums[0], before[1] + sums[1], before[2] + sums[2])
            points.append(sums)
        if not points:
            return None
        return cls(
            tuple(time / count for time, _, count in points), tuple(log / count for _, log, count in points)
        )

    def flat_from(self) -> float:
        """The loss from which on it has flattened out: the last one if it has not."""
        for time, log in zip(self.times[1:-1], self.logs[1:-1], strict=True):
            before = (self.logs[0] - log) / (time - self.times[0])
            after = (log - self.logs[-1]) / (self.times[-1] - time)
            if after < FLAT * before:
                return log
        return self.logs[-1]

    def reaches(self, log: float) -> float:
        """The logarithm of the time at which the loss has fallen to `log`; infinite if it never does."""
        place = bisect_left(self.logs, -log, key=lambda value: -value)
        if place == len(self.logs):
            return math.inf
        if place == 0:
            return self.times[0]
        share = (self.logs[place - 1] - log) / (self.logs[place - 1] - self.logs[place])
        return self.times[place - 1] + share * (self.times[place] - self.times[place - 1])

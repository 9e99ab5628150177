"""The time of a method's training step relative to another run's: measured, and by counting forward passes.

A sampler's probe runs once in P steps. Steps with the probe (due) and without (other) are timed separately,
each relative to a step of the base run beside it, so that other load on the machine affects both. A step then
costs

    ((P - 1) x median(other) + median(due)) / P.

A sampler without a probe may take in the losses of several steps together (`core/pending.py`), which a median
over single steps would not see: there it is over means of 16 steps, each in turn with one of the base.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, filterfalse
from statistics import fmean, median

from stepwell.core import require
from stepwell.core.estimates import Estimate
from stepwell.core.pending import TOGETHER
from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec
from stepwell.train.step import Training, train_step

START = 100_000
"""The first step that is timed: every probe is past its warm-up."""
FORWARDS_OF_A_STEP = 4
"""Kim et al. (2025, Sec. 9) count a training step as four forward passes of a batch."""
_WARM, _RESAMPLES = 4, 2000

Clock = Callable[[], float]
"""Returns seconds."""
Round = dict[str, list[float]]
"""Seconds of the base's steps, and what due and other steps took relative to those beside them."""


class Stepped:
    """A training run whose steps can be timed one by one; `step(number)` runs one."""

    def __init__(
        self, step: Callable[[int], object], spec: ProbeSpec | None, clock: Clock = time.perf_counter
    ) -> None:
        self.spec, self._step, self._clock = spec, step, clock
        self.period = 1 if spec is None else spec.every_steps
        alike = ("due",) * (TOGETHER if spec is None else 3)
        self.kinds = ("other", "due", "other") if self.period > 1 else alike
        """The steps of one round."""
        self.averaged = spec is None
        """Whether a round counts by the mean of its steps."""
        due = (lambda step: True) if spec is None else spec.due
        self._steps: dict[str, Iterator[int]] = {
            "due": filter(due, count(START)),
            "other": filterfalse(due, count(START)),
        }

    def seconds(self, kind: str) -> float:
        """The seconds of the next step of this kind."""
        step = next(self._steps[kind])
        started = self._clock()
        self._step(step)
        return self._clock() - started

    def warm_up(self) -> None:
        """Run a few steps of every kind, so that lazy initialisation is not timed."""
        for kind in self.kinds[:3] * _WARM:
            self.seconds(kind)


def stepped(training: Training, batch: int) -> Stepped:
    """A training with this batch size for timing; its weights change."""

    def step(number: int) -> None:
        # Reading the loss synchronises the device.
        float(train_step(training, number).loss)

    spec = training.pacer.sampler.probe
    return Stepped(step, None if spec is None else spec.for_run(batch))


@dataclass
class Timing:
    """The seconds of all rounds of one comparison."""

    period: int
    rounds: list[Round] = field(default_factory=list)

    def ratio(self, rounds: list[Round] | None = None) -> float:
        """The mean time of a step, relative to the base."""
        medians = _medians(self.rounds if rounds is None else rounds)
        others = (self.period - 1) * medians.get("other", 0.0)
        return (others + medians["due"]) / self.period

    def due_ratio(self) -> float:
        """The time of a step with the probe, relative to the base."""
        return _medians(self.rounds)["due"]

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the ratio, by a percentile bootstrap over rounds."""
        rng = random.Random(0)
        ratios = sorted(self.ratio(rng.choices(self.rounds, k=len(self.rounds))) for _ in range(_RESAMPLES))
        return ratios[int(0.025 * _RESAMPLES)], ratios[int(0.975 * _RESAMPLES) - 1]

    def base_seconds(self) -> float:
        """The median step of the base."""
        return _medians(self.rounds)["base"]


def _medians(rounds: list[Round]) -> dict[str, float]:
    return {kind: median(value for one in rounds for value in one[kind]) for kind in rounds[0]}


def timed(base: Stepped, subject: Stepped, rounds: int) -> Timing:
    """Time rounds of one step with the probe and two without, each beside a step of the base.

    Where nothing is measured, a round is 16 steps.
    """
    require.count("rounds", rounds)
    base.warm_up()
    subject.warm_up()
    timing = Timing(subject.period)
    for number in range(rounds):
        pairs: list[tuple[str, float, float]] = []
        for place, kind in enumerate(subject.kinds):
            # The order alternates: the second step may find warmer caches.
            if (number + place) % 2:
                before, own = base.seconds("due"), subject.seconds(kind)
            else:
                own, before = subject.seconds(kind), base.seconds("due")
            pairs.append((kind, own, before))
        if subject.averaged:
            pairs = [("due", fmean(own for _, own, _ in pairs), fmean(before for _, _, before in pairs))]
        seconds: Round = {"base": [before for _, _, before in pairs]}
        for kind, own, before in pairs:
            seconds.setdefault(kind, []).append(own / before)
        timing.rounds.append(seconds)
    return timing


@dataclass(frozen=True)
class StepCost:
    """The time of a method's step relative to the base, at one batch size."""

    method: str
    batch: int
    ratio: Estimate
    """The mean time of a step, relative to the base."""
    due_ratio: float
    """The time of a step with the probe, relative to the base."""
    every_steps: int
    """The probe runs once in so many steps; 1 without a probe."""
    counted: float
    """The ratio that counting the probe's forward passes predicts."""
    base_seconds: float
    """The median step of the base, on this machine."""


def step_cost(method: str, batch: int, base: Stepped, subject: Stepped, rounds: int) -> StepCost:
    """Time a method's steps against those of the base."""
    timing = timed(base, subject, rounds)
    return StepCost(
        method=method,
        batch=batch,
        ratio=Estimate(timing.ratio(), *timing.interval()),
        due_ratio=timing.due_ratio(),
        every_steps=subject.period,
        counted=counted(subject.spec, batch),
        base_seconds=timing.base_seconds(),
    )


def counted(spec: ProbeSpec | None, batch: int) -> float:
    """The predicted time of a step relative to uniform, if only the probe's forward passes cost anything."""
    passes = 0.0
    if isinstance(spec, DecreaseSpec):
        passes = 2 * (len(spec.subset) + -(-len(spec.grid) // batch))
    elif isinstance(spec, GradientSpec):
        passes = FORWARDS_OF_A_STEP * 2 * spec.images / batch
    return 1 + passes / FORWARDS_OF_A_STEP / (1 if spec is None else spec.every_steps)


def published_forwards(subset: int, timesteps: int, batch: int) -> float:
    """Forward passes of a batch per policy step, 2 |S| + 2 T / B: 21.6 in Kim et al. (2025, Sec. 9)."""
    return 2 * subset + 2 * timesteps / batch


def published_ratio(subset: int, timesteps: int, batch: int, every_steps: int) -> float:
    """The counted time of a step of Kim et al.'s method relative to uniform, as in their Sec. 9 (2025).

    1.41 with their settings is printed there. They count the policy network like the denoiser, which is far
    too much, with one forward pass in every step and one training step in every policy step. Without it the
    ratio is 1.14.
    """
    policy = 1 + FORWARDS_OF_A_STEP / every_steps
    probe = published_forwards(subset, timesteps, batch) / every_steps
    return 1 + (policy + probe) / FORWARDS_OF_A_STEP

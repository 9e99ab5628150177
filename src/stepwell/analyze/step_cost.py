"""What a method's steps cost: timed in turn with those of another run, and by counting forward passes.

A sampler measures once in P steps. Such steps (due) and the others are timed apart, each right before or
after a step of the run that they are compared with, so that a passing load hits both. A step then costs

    ((P - 1) x median(other) + median(due)) / (P x median(base)).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count, filterfalse
from statistics import median
from typing import Any

from stepwell.analyze.estimates import Estimate
from stepwell.core import require
from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec
from stepwell.train.step import Training, train_step

START = 100_000
"""A step where every probe has found its rhythm."""
FORWARDS_OF_A_STEP = 4
"""Kim et al. (2025, Sec. 9) count a training step as four forward passes of a batch."""
_WARM, _RESAMPLES = 4, 2000

Clock = Callable[[], float]
"""Seconds since some moment."""
Round = dict[str, list[float]]
"""Seconds of steps that are due, of others, and of the base."""


class Stepped:
    """One training run, a step at a time, in any order; `step` does the one of a number."""

    def __init__(
        self, step: Callable[[int], object], spec: ProbeSpec | None, clock: Clock = time.perf_counter
    ) -> None:
        self.spec, self._step, self._clock = spec, step, clock
        self.period = 1 if spec is None else spec.every_steps
        self.kinds = ("other", "due", "other") if self.period > 1 else ("due",) * 3
        """Of the steps of one round."""
        due = (lambda step: True) if spec is None else spec.due
        self._steps: dict[str, Iterator[int]] = {
            "due": filter(due, count(START)),
            "other": filterfalse(due, count(START)),
        }

    def seconds(self, kind: str) -> float:
        """The time of the next step that is due, or of the next that is not."""
        step = next(self._steps[kind])
        started = self._clock()
        self._step(step)
        return self._clock() - started

    def warm_up(self) -> None:
        """A few steps of every kind: what is made once has been made."""
        for kind in self.kinds * _WARM:
            self.seconds(kind)


def stepped(training: Training) -> Stepped:
    """A training whose steps are to be timed; it is trained by that."""

    def step(number: int) -> None:
        # Reading the loss waits for the device.
        float(train_step(training, number).loss)

    return Stepped(step, training.pacer.sampler.probe)


@dataclass
class Timing:
    """What the rounds of one comparison took."""

    period: int
    rounds: list[Round] = field(default_factory=list)

    def ratio(self, rounds: list[Round] | None = None) -> float:
        """A step over one of the base."""
        middle = _medians(self.rounds if rounds is None else rounds)
        others = (self.period - 1) * middle.get("other", 0.0)
        return (others + middle["due"]) / (self.period * middle["base"])

    def due_ratio(self) -> float:
        """A step that measures, over one of the base."""
        middle = _medians(self.rounds)
        return middle["due"] / middle["base"]

    def interval(self) -> tuple[float, float]:
        """95 % of the ratio: a percentile bootstrap over rounds."""
        chance = random.Random(0)
        drawn = sorted(self.ratio(chance.choices(self.rounds, k=len(self.rounds))) for _ in range(_RESAMPLES))
        return drawn[int(0.025 * _RESAMPLES)], drawn[int(0.975 * _RESAMPLES) - 1]

    def base_seconds(self) -> float:
        """The median step of the base."""
        return _medians(self.rounds)["base"]


def _medians(rounds: list[Round]) -> dict[str, float]:
    return {kind: median(value for one in rounds for value in one[kind]) for kind in rounds[0]}


def timed(base: Stepped, subject: Stepped, rounds: int) -> Timing:
    """Rounds of one step that is due and two that are not, each beside one of the base."""
    require.count("rounds", rounds)
    base.warm_up()
    subject.warm_up()
    timing = Timing(subject.period)
    for number in range(rounds):
        found: Round = {"base": [], **{kind: [] for kind in subject.kinds}}
        for place, kind in enumerate(subject.kinds):
            pair = [("base", base, "due"), (kind, subject, kind)]
            # The order alternates too: whoever runs second may find warmer caches.
            for name, run, step in pair if (number + place) % 2 else pair[::-1]:
                found[name].append(run.seconds(step))
        timing.rounds.append(found)
    return timing


@dataclass(frozen=True)
class StepCost:
    """A method's step against the base's, at one batch size."""

    method: str
    batch: int
    ratio: Estimate
    """A step over one of the base."""
    due_ratio: float
    """A step at which its probe measures, over one of the base."""
    every_steps: int
    """How often that is; 1 if it measures nothing."""
    counted: float
    """What counting forward passes of the probe predicts."""
    base_seconds: float
    """The median step of the base, on this machine."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def step_cost(method: str, batch: int, base: Stepped, subject: Stepped, rounds: int) -> StepCost:
    """Time a method's steps beside those of the base."""
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
    """A step over one of uniform by counting forward passes of the probe, all the rest being free."""
    passes = 0.0
    if isinstance(spec, DecreaseSpec):
        passes = 2 * (len(spec.subset) + -(-len(spec.grid) // batch))
    elif isinstance(spec, GradientSpec):
        passes = FORWARDS_OF_A_STEP * 2 * spec.images / batch
    return 1 + passes / FORWARDS_OF_A_STEP / (1 if spec is None else spec.every_steps)


def published_forwards(subset: int, timesteps: int, batch: int) -> float:
    """Batch-forwards of one policy step, 2 |S| + 2 T / B: 21.6 for 3, 1000, 128 (Kim et al. 2025, Sec. 9)."""
    return 2 * subset + 2 * timesteps / batch


def published_ratio(subset: int, timesteps: int, batch: int, every_steps: int) -> float:
    """A step of Kim et al.'s method over uniform's, counted: 1.41 for 3, 1000, 128, 40, which they give.

    Our reconstruction of how they (2025, Sec. 9) come to that number: the policy network is priced like the
    denoiser, which is far too much, with one forward pass in every step and one training step of it in every
    policy step. Without the policy the ratio would be 1.14.
    """
    policy = 1 + FORWARDS_OF_A_STEP / every_steps
    probe = published_forwards(subset, timesteps, batch) / every_steps
    return 1 + (policy + probe) / FORWARDS_OF_A_STEP

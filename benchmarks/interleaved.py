"""Steps of two training runs in turn, so that a passing load hits both.

A sampler measures once in P steps. Such steps (due) and the others are timed apart, each right before or
after a step of the run that they are compared with, and a step then costs

    ((P - 1) x median(other) + median(due)) / (P x median(base)).
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from itertools import count, filterfalse
from statistics import median

from accelerate import Accelerator

from stepwell.core.probe_spec import ProbeSpec
from stepwell.recipes.build import experiment, training_of
from stepwell.recipes.load import load
from stepwell.train.step import train_step

WARM, RESAMPLES = 4, 2000
START = 100_000
"""A step where every probe has found its rhythm."""


class Trained:
    """One training run on fashion16, a step at a time, in any order."""

    def __init__(self, settings: dict[str, str]) -> None:
        words = [f"{key}={value}" for key, value in settings.items()]
        self._training = training_of(experiment(load("fashion16", words)), Accelerator(cpu=True))
        self.spec: ProbeSpec | None = self._training.pacer.sampler.probe
        self.period = 1 if self.spec is None else self.spec.every_steps
        self.kinds = ("other", "due", "other") if self.period > 1 else ("due",) * 3
        """Of the steps of one round."""
        due = (lambda step: True) if self.spec is None else self.spec.due
        self._steps = {"due": filter(due, count(START)), "other": filterfalse(due, count(START))}

    def seconds(self, kind: str) -> float:
        """The time of the next step that is due, or of the next that is not."""
        step = next(self._steps[kind])
        started = time.perf_counter()
        train_step(self._training, step)
        return time.perf_counter() - started

    def warm_up(self) -> None:
        """A few steps of every kind: what is made once has been made."""
        for kind in self.kinds * WARM:
            self.seconds(kind)


Round = dict[str, list[float]]
"""Seconds of steps that are due, of others, and of the base."""


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
        drawn = sorted(self.ratio(chance.choices(self.rounds, k=len(self.rounds))) for _ in range(RESAMPLES))
        return drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES) - 1]


def _medians(rounds: list[Round]) -> dict[str, float]:
    return {kind: median(value for one in rounds for value in one[kind]) for kind in rounds[0]}


def timed(base: Trained, subject: Trained, rounds: int) -> Timing:
    """Rounds of one step that is due and two that are not, each beside one of the base."""
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

"""Ratios of step times on a clock that is told what steps cost; the paper's arithmetic."""

from __future__ import annotations

import random

import pytest

import stepwell
from stepwell.analyze.step_cost import (
    Stepped,
    counted,
    published_forwards,
    published_ratio,
    step_cost,
    timed,
)
from stepwell.core.errors import InvalidParameter
from stepwell.core.pending import TOGETHER
from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec

SPEC = DecreaseSpec(40, subset=(0.1, 0.5, 0.9), grid=tuple(k / 1000 for k in range(1000)))


class FakeClock:
    """Time that passes only when a step says so."""

    def __init__(self, drift: float = 0.0, jitter: float = 0.0) -> None:
        self.now, self._drift, self._chance, self._jitter = 0.0, drift, random.Random(1), jitter

    def __call__(self) -> float:
        return self.now

    def run(self, spec: ProbeSpec | None, plain: float, due: float) -> Stepped:
        """A run whose steps take `plain`, or `due` where its probe measures, on a machine that slows down."""

        def step(number: int) -> None:
            cost = due if spec is not None and spec.due(number) else plain
            slower = (1 + self._drift * self.now) * (1 + self._jitter * self._chance.random())
            self.now += cost * slower

        return Stepped(step, spec, self)


def test_due_steps_and_others_are_combined_with_their_period() -> None:
    clock = FakeClock()
    found = step_cost("planted", 128, clock.run(None, 2.0, 2.0), clock.run(SPEC, 2.5, 10.0), rounds=5)
    assert found.ratio.value == pytest.approx((39 * 2.5 + 10) / (40 * 2.0))
    assert found.ratio.low == pytest.approx(found.ratio.value)
    assert found.ratio.high == pytest.approx(found.ratio.value)
    assert found.due_ratio == pytest.approx(5.0)
    assert (found.every_steps, found.base_seconds) == (40, pytest.approx(2.0))
    assert found.counted == counted(SPEC, 128)
    assert found.method == "planted"


def test_a_machine_that_slows_down_cancels() -> None:
    clock = FakeClock(drift=1e-4, jitter=0.05)
    found = step_cost("slow", 64, clock.run(None, 1.0, 1.0), clock.run(SPEC, 1.2, 6.0), rounds=40)
    wanted = (39 * 1.2 + 6) / 40
    assert found.ratio.value == pytest.approx(wanted, rel=0.02)
    assert found.ratio.low <= found.ratio.value <= found.ratio.high
    assert found.ratio.high - found.ratio.low < 0.1


def test_a_method_that_measures_nothing_has_one_kind_of_step() -> None:
    clock = FakeClock()
    timing = timed(clock.run(None, 1.0, 1.0), clock.run(None, 1.5, 1.5), rounds=3)
    assert timing.ratio() == timing.due_ratio() == pytest.approx(1.5)
    assert all(set(one) == {"base", "due"} and len(one["base"]) == 1 for one in timing.rounds)


def test_what_a_method_does_in_one_of_32_steps_is_counted() -> None:
    clock = FakeClock()

    def step(number: int) -> None:
        clock.now += 1.0 + 4.0 * (number % TOGETHER == 5)

    timing = timed(clock.run(None, 1.0, 1.0), Stepped(step, None, clock), rounds=5)
    assert timing.ratio() == pytest.approx(1 + 4 / TOGETHER)


def test_rounds_alternate_who_comes_first() -> None:
    order: list[str] = []
    base, other = (Stepped(lambda step, name=name: order.append(name), None) for name in ("base", "other"))
    # No step takes any time here: only their order is looked at.
    timed(base, other, rounds=2)
    pairs = list(zip(order[::2], order[1::2], strict=True))[-2 * TOGETHER :]
    assert {pairs.count(("base", "other")), pairs.count(("other", "base"))} == {TOGETHER}
    assert pairs[0] != pairs[1]


def test_the_papers_arithmetic() -> None:
    # Kim et al. 2025, Sec. 9: 6 + 15.6 batch-forwards, 1.41 times.
    assert published_forwards(3, 1000, 128) == pytest.approx(21.6, abs=0.05)
    assert published_ratio(3, 1000, 128, 40) == pytest.approx(1.41, abs=0.005)


def test_counting_takes_whole_batches_and_no_policy() -> None:
    # 2 (3 + 8) forwards in 40 steps of 4: without the policy network there is far less than 1.41 to pay.
    assert counted(SPEC, 128) == pytest.approx(1 + 22 / 160)
    assert counted(None, 128) == 1.0
    # Two halves of 16 gradients, each as dear as an image's training step, over 64 images, every 16 steps.
    assert counted(GradientSpec(16, borders=(0.0, 0.5, 1.0), images=16), 64) == pytest.approx(1 + 0.5 / 16)
    assert counted(stepwell.sampler("uniform", "linear").probe, 8) == 1.0


def test_rounds_must_be_a_count() -> None:
    clock = FakeClock()
    with pytest.raises(InvalidParameter, match="rounds must be a whole number of at least 1"):
        timed(clock.run(None, 1.0, 1.0), clock.run(None, 1.0, 1.0), rounds=0)

"""How much a gradient probe measures for a small batch: counted in examples, not in seconds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepwell
from stepwell.core.probe import GradientSpec
from stepwell.recipes.cost import probe_work
from stepwell.recipes.load import load
from stepwell.recipes.meta_flops import count, meta_network

NAMES = ("neyman", "gradient-variance", "alignment")


def spec_of(name: str, **parameters: Any) -> GradientSpec:
    spec = stepwell.sampler(name, "linear", **parameters).probe
    assert isinstance(spec, GradientSpec)
    return spec


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [1, 2, 4, 7, 16, 33, 63])
def test_a_small_batch_is_measured_with_at_most_a_twentieth_of_its_examples(name: str, batch: int) -> None:
    spec = spec_of(name).for_run(batch)
    assert 4 <= spec.images <= 16
    assert 2 * spec.images / (spec.every_steps * batch) <= 0.05 + 1e-9
    start = 100_000
    steps = 40 * spec.every_steps
    measured = sum(spec.due(step) for step in range(start, start + steps))
    assert measured * 2 * spec.images <= 0.051 * steps * batch


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [64, 65, 4096])
def test_from_64_on_nothing_changes(name: str, batch: int) -> None:
    spec = spec_of(name).for_run(batch)
    assert (spec.images, spec.every_steps) == (16, 24 if name == "alignment" else 16)
    assert spec == spec_of(name)


def test_the_first_round_at_batch_4_is_over_within_200_steps() -> None:
    spec = spec_of("neyman").for_run(4)
    assert {spec.stratum(step) for step in range(200) if spec.due(step)} == set(range(20))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [1, 4, 64])
@pytest.mark.parametrize("updates", [40, 100, 159])
def test_the_first_round_takes_half_of_a_short_run(name: str, batch: int, updates: int) -> None:
    spec = spec_of(name).for_run(batch, updates)
    first = range(updates // 2)
    assert {spec.stratum(step) for step in first if spec.due(step)} == set(range(20))
    assert spec.fast_steps <= updates // 2


@pytest.mark.parametrize("name", NAMES)
def test_a_long_run_measures_as_one_of_unknown_length(name: str) -> None:
    known, unknown = spec_of(name).for_run(64, 300), spec_of(name).for_run(64)
    for step in range(300):
        assert known.due(step) == unknown.due(step)
        assert known.stratum(step) == unknown.stratum(step)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_user_gives_is_kept(name: str) -> None:
    both = spec_of(name, every_steps=16, images=16).for_run(4)
    assert (both.images, both.every_steps) == (16, 16)
    images = spec_of(name, images=8).for_run(4)
    assert (images.images, images.every_steps) == (8, 80)
    steps = spec_of(name, every_steps=3).for_run(4)
    assert (steps.images, steps.every_steps) == (4, 3)


def test_a_range_of_time_keeps_it() -> None:
    spec = stepwell.sampler("neyman", "linear", within=(0.2, 0.7), unbiased=False).probe
    assert isinstance(spec, GradientSpec)
    assert spec.for_run(4).every_steps == 40


class Run:
    """A loop around a pacer that notes the examples of each measurement."""

    def __init__(self, batch: int, group: Any = None) -> None:
        self.weight = nn.Parameter(torch.ones(3))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.0)
        self.measured: list[tuple[int, int]] = []
        self.batch, self.step = batch, 0
        self.pacer = stepwell.Pacer(
            "neyman", "linear", loss_at=self.loss_at, optimizer=self.optimizer, group=group
        )

    def loss_at(self, x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        self.measured.append((self.step, len(x0)))
        return ((x0 + noise) * self.weight).square().mean(1)

    def run(self, steps: int, batch: int | None = None) -> None:
        for _ in range(steps):
            x0 = torch.full((batch or self.batch, 3), float(self.step))
            tick = stepwell.Tick(step=self.step)
            self.pacer.draw(x0, tick)
            self.pacer.before_update()
            self.pacer.after_update()
            self.step += 1


def test_a_run_measures_what_the_spec_of_its_batch_says() -> None:
    for batch, first, images in ((4, 10, 8), (64, 4, 32)):
        run = Run(batch)
        run.run(2 * first)
        assert run.measured == [(first - 1, images), (2 * first - 1, images)]


def test_a_smaller_last_batch_of_an_epoch_changes_nothing() -> None:
    run = Run(64)
    run.run(7)
    run.run(1, batch=4)
    run.run(4)
    assert run.measured == [(3, 32), (7, 32), (11, 32)]


def test_a_resumed_run_keeps_its_batch() -> None:
    run, resumed = Run(4), Run(4)
    run.run(15)
    resumed.pacer.load_state_dict(run.pacer.state_dict())
    resumed.step = run.step
    # A last batch of an epoch comes first.
    resumed.run(1, batch=3)
    resumed.run(14)
    assert resumed.measured == [(19, 8), (29, 8)]


def test_a_state_without_a_batch_takes_the_next_one() -> None:
    run, resumed = Run(4), Run(64)
    run.run(5)
    state = run.pacer.state_dict()
    assert state["probe"].pop("batch") == 4
    resumed.pacer.load_state_dict(state)
    resumed.step = run.step
    resumed.run(3)
    assert resumed.measured == [(7, 32)]


def test_ranks_with_different_batches_agree() -> None:
    class Two:
        rank, world = 0, 2

        def mean(self, value: Tensor) -> Tensor:
            # The other rank has 60 examples.
            return (value + 60) / 2 if value.dim() == 0 else value

        def gather(self, value: Tensor) -> Tensor:
            return torch.cat([value, value])

    run = Run(4, group=Two())
    run.run(8)
    # 64 in all: every 4 steps, this rank's half of 2 x 16.
    assert [step for step, _ in run.measured] == [3, 7]


def test_what_a_plan_costs_counts_the_same() -> None:
    shares = {}
    for batch in (4, 64):
        plan = load("fashion16", ["method=neyman", f"batch={batch}"])
        shape = (1, 16, 16)
        network = count(meta_network(plan.recipe, shape, 0), shape, 0)
        shares[batch] = probe_work(plan, network, 1).total / (network.training.total * batch)
    assert shares[4] == pytest.approx(2 * 4 / (40 * 4))
    assert shares[64] == pytest.approx(2 * 16 / (16 * 64))

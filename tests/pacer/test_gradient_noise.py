"""Signal and noise of planted gradients: critical batch, images, their intervals, and what they correct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stepwell
from stepwell.core.allocation import Noise, critical_batch
from stepwell.core.errors import InvalidParameter
from stepwell.core.estimates import Estimate
from stepwell.pacer import CallOrderError, Pacer
from stepwell.pacer.gradient_noise import KEPT, STRATA, Draws, GradientNoise
from stepwell.samplers.gradients import strata_spec

SIZE = 1024
LINEAR = stepwell.process("linear")
BORDERS = torch.tensor(strata_spec(LINEAR, STRATA, 1, 1, None, "adam").borders)


def planted(spread: Tensor, means: Tensor, sampler: str = "uniform", **more: Any) -> Pacer:
    """A pacer of a linear loss: in stratum i one gradient is means[i] + spread[i] x standard normal."""
    weight = torch.nn.Parameter(torch.zeros(SIZE))

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        stratum = torch.searchsorted(BORDERS[1:-1], u, right=True)
        return (means[stratum] + spread[stratum, None] * noise) @ weight

    return Pacer(sampler, LINEAR, loss_at=loss_at, optimizer=torch.optim.Adam([weight]), **more)


def train(
    pacer: Pacer, batch: int = 16, steps: int = 10, loss: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Updates whose losses are alike at all times, unless a curve is given."""
    for step in range(steps):
        pace = pacer.draw(torch.zeros(batch, 1))
        chance = torch.randn(batch, 4, generator=torch.Generator().manual_seed(step)).square().mean(1)
        pacer.observe(chance if loss is None else loss(pace.u) * chance)
        pacer.before_update()
        pacer.after_update()


def measure(pacer: Pacer, times: int, examples: int = 32) -> None:
    for number in range(times):
        pacer.measure(torch.randn(examples, SIZE, generator=torch.Generator().manual_seed(number)))


def direction(length: float, seed: int = 1) -> Tensor:
    vector = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
    return vector * (length / vector.norm())


def test_planted_gradients_give_the_critical_batch_and_the_images() -> None:
    spread = torch.linspace(1.6, 0.4, STRATA)
    pacer = planted(spread, direction(4.0).expand(STRATA, SIZE))
    train(pacer, batch=64)
    measure(pacer, 6)
    told = pacer.forecast()
    critical = SIZE * float(spread.square().mean()) / 16
    assert told.critical_batch is not None
    assert told.images is not None
    assert told.best_images is not None
    # |G|^2 is 16 in 6 products of two means of 8 x 2 examples in 1,024 coordinates: 15 % of it is one error.
    assert told.critical_batch.value == pytest.approx(critical, rel=0.4)
    assert told.critical_batch.low < critical < told.critical_batch.high
    x = critical / 64
    assert told.images.value == pytest.approx(1, abs=0.01), "uniform's own draws"
    assert told.best_images.value == pytest.approx((1 + told.least * x) / (1 + x), abs=0.05)
    assert told.best_images.low < (1 + told.least * x) / (1 + x) < told.best_images.high


def test_intervals_cover_what_is_true() -> None:
    """In 300 studies of eight measurements of Gaussian gradients, as often as 95 % intervals should."""
    size, images, batch, trials = 64, 4, 16, 300
    spread = torch.linspace(0.4, 1.6, STRATA).double()
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(STRATA, 1, size, generator=generator, dtype=torch.float64) * 0.3 + 1.0
    within, signal = size * spread.square().mean(), mean.mean(0).square().sum()
    true = Noise(within, mean.square().sum(-1).mean() - signal, signal)
    covered = torch.zeros(3)
    for _ in range(trials):
        noise = GradientNoise()
        for _ in range(KEPT):
            chance = torch.randn(STRATA, 2, size, generator=generator, dtype=torch.float64)
            noise._add(mean + spread[:, None, None] * chance / images**0.5, images)
        left = 0.6 + 0.05 * float(torch.randn((), generator=generator))
        told = noise.estimates(batch, [Draws(left, 0.05, True), Draws(left, 0.05, False)])
        assert told is not None
        truth = [1 / true.per_noise(), *(true.images(batch, 0.6, even) for even in (True, False))]
        covered += torch.tensor([one.low < value < one.high for one, value in zip(told, truth, strict=True)])
    # 0.95 with a standard error of 0.013 over 300 studies.
    assert bool((covered / trials > 0.91).all()), covered / trials
    assert bool((covered / trials < 0.995).all()), covered / trials


def test_images_are_the_law_and_only_stratified_draws_lose_what_lies_between() -> None:
    def of(within: float, between: float, signal: float) -> Noise:
        return Noise(*map(torch.tensor, (within, between, signal)))

    # x = 80 / (2 x 16) = 2.5
    for stratified in (True, False):
        assert float(of(80.0, 0.0, 2.0).images(16, 0.4, stratified)) == pytest.approx((1 + 0.4 * 2.5) / 3.5)
    both = of(60.0, 20.0, 2.0)
    assert float(both.images(16, 1.0, False)) == pytest.approx(1)
    assert float(both.images(16, 1.0, True)) == pytest.approx((32 + 60) / (32 + 80))
    assert float(both.images(16, 0.5, False)) == pytest.approx((32 + 30 + 20) / (32 + 80))
    assert float(of(80.0, 0.0, -1.0).images(16, 0.4, True)) == pytest.approx(0.4), "no signal: all is noise"
    assert critical_batch(Estimate(0.025, 0.02, 0.05)) == Estimate(40, 20, 50)
    assert critical_batch(Estimate(-0.1, -0.2, 0.1)) == Estimate(float("inf"), 10, float("inf"))


def test_a_stratified_sampler_is_told_what_it_saves_between_strata() -> None:
    means = torch.stack([direction(20.0, seed) for seed in range(STRATA)])
    told = []
    for sampler in ("uniform", "uniform:stratified=true"):
        pacer = planted(torch.ones(STRATA), means, sampler)
        train(pacer, batch=4)
        measure(pacer, 4)
        told.append(pacer.forecast().images)
    assert told[0] is not None
    assert told[1] is not None
    assert told[0].value == pytest.approx(1, abs=0.01)
    # |mean|^2 is 400 in each stratum and about 50 over all: 350 of a total of 1,374 lie between them.
    assert told[1].value == pytest.approx((4 * 50 + 1024) / (4 * 50 + 1374), abs=0.04)


def test_fewer_than_three_measurements_and_no_update_make_no_images() -> None:
    pacer = planted(torch.ones(STRATA), torch.ones(STRATA, SIZE))
    measure(pacer, 3)
    assert pacer.forecast().images is None, "there is no batch before the first update"
    pacer = planted(torch.ones(STRATA), torch.ones(STRATA, SIZE))
    train(pacer)
    measure(pacer, 2)
    assert pacer.forecast().critical_batch is None
    measure(pacer, 1)
    assert pacer.forecast().critical_batch is not None


def test_only_the_last_measurements_count_and_those_that_are_not_finite_do_not() -> None:
    noise = GradientNoise()
    for number in range(KEPT + 3):
        noise._add(torch.full((STRATA, 2, 4), float(number), dtype=torch.float64), 2)
    noise._add(torch.full((STRATA, 2, 4), torch.nan, dtype=torch.float64), 2)
    assert noise.measured == KEPT
    assert float(noise.noise().signal) == sum(4 * n * n for n in range(3, KEPT + 3)) / KEPT


def test_what_cannot_be_measured_is_one_clear_error() -> None:
    pacer = planted(torch.ones(STRATA), torch.ones(STRATA, SIZE))
    with pytest.raises(
        InvalidParameter, match=r"on 16 examples or more.*not on 15: give measure a larger x0"
    ):
        pacer.measure(torch.zeros(15, SIZE))
    with pytest.raises(CallOrderError, match="give the Pacer loss_at="):
        Pacer("uniform", "linear").measure(torch.zeros(16, 1))
    with pytest.raises(CallOrderError, match=r"needs the optimizer.*call pacer.attach\(optimizer\)"):
        Pacer("uniform", "linear", loss_at=lambda x0, noise, u, condition: u).measure(torch.zeros(16, 1))


def test_it_goes_on_exactly_from_its_state_and_from_one_of_before_it_was_measured() -> None:
    def made() -> Pacer:
        return planted(torch.linspace(1.6, 0.4, STRATA), torch.ones(STRATA, SIZE))

    whole, half, resumed = made(), made(), made()
    for pacer in (whole, half):
        train(pacer)
        measure(pacer, 2)
    resumed.load_state_dict(half.state_dict())
    for pacer in (whole, resumed):
        measure(pacer, 2)
    assert resumed.forecast() == whole.forecast()
    assert resumed.forecast().images is not None
    old = half.state_dict()
    del old["forecast"]["noise"], old["forecast"]["batch"]
    fresh = made()
    fresh.load_state_dict(old)
    assert fresh.forecast().losses == 160
    assert fresh.forecast().images is None


def test_measured_gradients_correct_losses_that_mislead() -> None:
    """Losses are alike at all times, gradients are not: the more measurements, the truer the best draws."""
    spread = torch.linspace(1.9, 0.1, STRATA)
    true = float(spread.mean() ** 2 / spread.square().mean())
    pacer = planted(spread, torch.zeros(STRATA, SIZE))
    train(pacer, steps=60)
    told = [pacer.forecast().least]
    for _ in range(3):
        measure(pacer, 2)
        told.append(pacer.forecast().least)
    assert told[0] > 0.98
    distance = [abs(least - true) for least in told]
    assert distance == sorted(distance, reverse=True)
    assert distance[-1] < 0.4 * distance[0]


def test_measuring_leaves_weights_optimizer_and_random_numbers_as_they_were() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4))
    optimizer = torch.optim.Adam(network.parameters())
    objective = stepwell.Objective(LINEAR)

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        return objective(lambda x, time, told: network(x), x0, noise, u, condition).plain

    pacer = Pacer("uniform", LINEAR, loss_at=loss_at, network=network).attach(optimizer)
    pace = pacer.draw(torch.ones(8, 4))
    (loss_at(torch.ones(8, 4), torch.randn(8, 4), pace.u, None)).mean().backward()
    optimizer.step()

    def state() -> list[Tensor]:
        moments = [value for one in optimizer.state.values() for value in one.values()]
        gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
        return [t.clone() for t in (*network.parameters(), *moments, *gradients, torch.get_rng_state())]

    before = state()
    pacer.measure(torch.randn(32, 4, generator=torch.Generator().manual_seed(0)))
    assert pacer._forecaster.noise.measured == 1
    assert all(torch.equal(one, other) for one, other in zip(before, state(), strict=True))


class Half:
    """One of two ranks, whose sketches are averaged with those of the other, measured before."""

    def __init__(self, rank: int, given: list[Tensor]) -> None:
        self.rank, self.world, self._given, self.seen = rank, 2, given, list[Tensor]()

    def mean(self, tensor: Tensor) -> Tensor:
        self.seen.append(tensor)
        other = self._given[len(self.seen) - 1] if self._given else tensor
        return (tensor + other) / 2


def test_two_ranks_measure_twice_the_examples() -> None:
    """Rank 0 first, then rank 1 beside what rank 0 measured: variances of one example stay what they are."""
    spread, seen = torch.linspace(1.6, 0.4, STRATA), list[Tensor]()
    for rank in (0, 1):
        group: Any = Half(rank, seen)
        pacer = planted(spread, torch.zeros(STRATA, SIZE), group=group)
        pacer.measure(torch.randn(16, SIZE, generator=torch.Generator().manual_seed(rank)))
        seen = group.seen
    found = pacer._forecaster.noise.variances() / SIZE
    assert found.tolist() == pytest.approx(spread.square().tolist(), rel=0.2)

"""Every random stream is a pure function of its tick, and no two ticks share one."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from accelerator import DEVICE
from odds import assert_follows_masses, assert_uniform
from scipy import stats

from stepwell.core.errors import InvalidParameter
from stepwell.core.tensors import FEW
from stepwell.core.tick import Tick, uniforms

RATE = 1e-6
HERE = Tick(seed=3, step=10, micro=2, rank=1, world=4)
ELSEWHERE = {
    "seed": replace(HERE, seed=4),
    "step": replace(HERE, step=11),
    "micro": replace(HERE, micro=3),
    "rank": replace(HERE, rank=2),
}


def test_a_tick_is_a_value() -> None:
    assert replace(HERE) == HERE
    assert hash(replace(HERE)) == hash(HERE)
    with pytest.raises(FrozenInstanceError):
        HERE.step = 11


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"step": -1}, "step"),
        ({"step": 1.0}, "step"),
        ({"step": True}, "step"),
        ({"step": None}, "step"),
        ({"micro": -1}, "micro"),
        ({"rank": -1, "world": 2}, "rank"),
        ({"world": 0}, "world"),
        ({"rank": 1}, "rank 1 does not exist in a world of 1"),
        ({"rank": 4, "world": 4}, "from 0 to 3"),
    ],
    ids=str,
)
def test_a_tick_that_cannot_be_is_refused(parameters: dict, named: str) -> None:
    with pytest.raises(InvalidParameter, match=named):
        Tick(**parameters)


def test_the_same_tick_gives_the_same_bits() -> None:
    assert torch.equal(HERE.uniform("x", 1000), replace(HERE).uniform("x", 1000))


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**40, 2**70])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert not torch.equal(Tick(seed=seed).uniform("x", 10), Tick(seed=seed + 1).uniform("x", 10))


def _assert_uncorrelated(one: torch.Tensor, other: torch.Tensor, tests: int) -> None:
    """The correlation of n independent pairs is normal with deviation 1 / sqrt(n); RATE over all tests."""
    correlation = float(torch.corrcoef(torch.stack([one, other]).double())[0, 1])
    assert abs(correlation) < float(stats.norm.isf(RATE / tests / 2)) / len(one) ** 0.5


@pytest.mark.parametrize("change", ELSEWHERE)
def test_another_tick_is_an_independent_stream(change: str) -> None:
    one, other = HERE.uniform("x", 50_000), ELSEWHERE[change].uniform("x", 50_000)
    assert (one == other).float().mean() < 1e-4
    _assert_uncorrelated(one, other, len(ELSEWHERE) + 1)


def test_another_name_is_an_independent_stream() -> None:
    _assert_uncorrelated(HERE.uniform("timestep", 50_000), HERE.uniform("noise", 50_000), len(ELSEWHERE) + 1)


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("over", ["seed", "step", "micro", "rank"])
def test_one_place_of_the_batch_is_uniform_over_ticks(over: str, place: int) -> None:
    # Inside one stream the hash is well tried; over ticks it is the key that has to be.
    ticks = [replace(Tick(seed=1, world=5000), **{over: value}) for value in range(5000)]
    v = torch.stack([tick.uniform("timestep", 6)[place] for tick in ticks])
    assert_uniform(v, failure_rate=RATE)
    assert_follows_masses((v.double() * 100).long(), torch.ones(100), failure_rate=RATE)
    _assert_uncorrelated(v[:-1], v[1:], 8)


def test_no_two_ticks_share_a_key() -> None:
    ticks = itertools.product(range(3), range(10), range(3), range(4), ("timestep", "noise"))
    keys = [Tick(seed, step, micro, rank, 4).key(stream) for seed, step, micro, rank, stream in ticks]
    assert len(set(keys)) == len(keys)


def test_a_rank_draws_the_same_in_a_world_of_any_size() -> None:
    # Reproducing one rank of a large run needs one process.
    assert replace(HERE, world=64).key("x") == HERE.key("x")


def test_ranks_and_accumulation_steps_have_one_key_in_common() -> None:
    tick = Tick(seed=3, step=5, micro=2, rank=1, world=4)
    assert tick.shared_key("a") == tick.shared().key("a") == replace(tick, micro=0, rank=3).shared_key("a")


def test_ranks_and_accumulation_steps_have_one_tick_in_common() -> None:
    common = {replace(HERE, rank=rank, micro=micro).shared() for rank in range(4) for micro in range(3)}
    assert common == {Tick(seed=3, step=10)}


def test_uniforms_on_another_device_have_the_same_shape() -> None:
    v = HERE.uniform("x", 12, DEVICE)
    assert (v.shape, v.dtype, v.device) == ((12,), torch.float32, DEVICE)


@pytest.mark.parametrize("key", [0, 1, -5, 2**63 - 1, -(2**63)])
def test_few_uniforms_have_the_bits_of_many(key: int) -> None:
    many = uniforms(key, FEW + 1)
    for count in (0, 1, 4, FEW):
        assert torch.equal(uniforms(key, count), many[:count])


def test_a_generator_repeats_and_differs_by_tick_and_name() -> None:
    def noise(tick: Tick, stream: str) -> torch.Tensor:
        return torch.randn(100, generator=tick.generator(stream))

    before = torch.get_rng_state()
    here = noise(HERE, "noise")
    assert torch.equal(here, noise(replace(HERE), "noise"))
    for tick, stream in [*((tick, "noise") for tick in ELSEWHERE.values()), (HERE, "other")]:
        assert not torch.equal(here, noise(tick, stream))
    assert torch.equal(before, torch.get_rng_state())

"""Which examples a probe looks at, at which times and with which noise."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from odds import assert_uniform
from torch import Tensor

import stepwell
from stepwell.core.condition import leaves
from stepwell.core.errors import Unsupported
from stepwell.core.tick import Tick, uniforms
from stepwell.probes.examples import Pool, between, noise, times

RATE = 1e-6
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Prompt:
    """A condition of two parts."""

    text: Tensor
    size: Tensor


def _batch(start: int, count: int) -> Tensor:
    """Examples whose values are their numbers."""
    return torch.arange(start, start + count).float()[:, None].expand(count, 3).clone()


CONDITIONS: dict[str, Any] = {
    "none": lambda x0: None,
    "tensor": lambda x0: x0[:, 0] + 100,
    "dataclass": lambda x0: Prompt(x0 + 100, x0[:, 0] + 200),
    "mapping": lambda x0: {"text": x0 + 100, "crop": None, "size": x0[:, 0] + 200},
}


def _numbers(pool: Pool) -> list[float]:
    """Whose examples are in the pool; their conditions must be theirs."""
    assert pool.x0 is not None
    numbers = pool.x0[:, 0]
    for leaf, offset in zip(leaves(pool.condition), (100, 200), strict=False):
        assert torch.equal(leaf if leaf.dim() == 1 else leaf[:, 0], numbers + offset)
    return numbers.tolist()


# the pool


@pytest.mark.parametrize("name", CONDITIONS)
def test_small_batches_are_pooled_until_there_are_enough(name: str) -> None:
    pool, given = Pool(8), CONDITIONS[name]
    for start in range(0, 15, 3):
        x0 = _batch(start, 3)
        pool.add(x0, given(x0))
        assert _numbers(pool) == list(range(max(0, start + 3 - 8), start + 3))


def test_batches_of_other_sizes_meet_in_one_pool() -> None:
    pool, start = Pool(6), 0
    for count in (1, 4, 2, 5, 1, 9, 3):
        pool.add(_batch(start, count), None)
        start += count
        assert _numbers(pool) == list(range(max(0, start - 6), start))


@pytest.mark.parametrize("count", [8, 9, 64])
def test_a_batch_that_is_large_enough_is_not_copied(count: int) -> None:
    pool, x0 = Pool(8), _batch(0, count)
    labels = x0[:, 0] + 100
    pool.add(_batch(50, 3), torch.zeros(3))
    pool.add(x0, labels)
    assert pool.x0 is not None
    for kept, given in ((pool.x0, x0), (pool.condition, labels)):
        assert kept.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    assert _numbers(pool) == list(range(count - 8, count))


def test_small_batches_are_copied_as_a_loop_may_reuse_their_memory() -> None:
    pool, buffer = Pool(4), torch.zeros(2, 3)
    for value in (1.0, 2.0):
        buffer.fill_(value)
        pool.add(buffer, buffer[:, 0])
    assert pool.x0 is not None
    assert pool.x0[:, 0].tolist() == [1, 1, 2, 2]
    assert pool.condition.tolist() == [1, 1, 2, 2]


def test_no_graph_is_kept_alive() -> None:
    pool, weight = Pool(4), torch.ones(3, requires_grad=True)
    for count in (2, 2, 9):
        pool.add(_batch(0, count) * weight, Prompt(_batch(0, count) * weight, torch.ones(count)))
        assert pool.x0 is not None
        assert not any(tensor.requires_grad for tensor in (pool.x0, *leaves(pool.condition)))


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("count", [3, 20])
def test_a_restored_pool_goes_on_as_if_nothing_had_happened(name: str, count: int) -> None:
    given, pool, restored = CONDITIONS[name], Pool(8), Pool(8)
    for start in (0, count):
        pool.add(_batch(start, count), given(_batch(start, count)))
    stored = io.BytesIO()
    torch.save(pool.state_dict(), stored)
    stored.seek(0)
    restored.load_state_dict(torch.load(stored, weights_only=True))
    # A checkpoint may be written again before the first batch.
    again = restored.state_dict()
    assert all(torch.equal(again[key], value) for key, value in pool.state_dict().items())
    for each in (pool, restored):
        each.add(_batch(90, 2), given(_batch(90, 2)))
    assert _numbers(restored) == _numbers(pool)
    assert type(restored.condition) is type(pool.condition)


def test_a_saved_pool_does_not_change_with_the_pool() -> None:
    pool, x0 = Pool(4), _batch(0, 8)
    pool.add(x0, x0[:, 0])
    state = pool.state_dict()
    x0.zero_()
    assert state["0"][:, 0].tolist() == [4, 5, 6, 7]
    assert state["1"].tolist() == [4, 5, 6, 7]


def test_small_batches_of_changing_shape_are_an_error_that_says_what_to_write() -> None:
    pool = Pool(8)
    pool.add(torch.zeros(4, 1, 8, 8), None)
    with pytest.raises(Unsupported, match=r"\[\(1, 8, 8\)\] to \[\(1, 8, 4\)\].*images=2"):
        pool.add(torch.zeros(4, 1, 8, 4), None)
    large = Pool(4)
    for shape in ((8, 8), (8, 4)):
        large.add(torch.zeros(4, 1, *shape), None)
    assert large.x0 is not None
    assert large.x0.shape == (4, 1, 8, 4)


# times


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_out_the_times_of_one_process(world: int) -> None:
    tick = Tick(seed=1, step=5)
    parts = [times(replace(tick, rank=r, world=world, micro=r), "probe", 4, CPU) for r in range(world)]
    assert torch.equal(torch.cat(parts), times(tick, "probe", 4 * world, CPU))
    assert not torch.equal(parts[0], times(replace(tick, step=6), "probe", 4, CPU))
    assert not torch.equal(parts[0], times(tick, "other", 4, CPU))


REFERENCES = {
    "uniform": stepwell.process("linear"),
    "edm": stepwell.process("edm"),
    "logit-normal": stepwell.process("flow", reference="logit-normal"),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(("low", "high"), [(0.0, 0.3), (0.45, 0.5), (0.7, 1.0), (0.0, 1.0)])
def test_times_of_a_stratum_are_distributed_as_the_objective_is(name: str, low: float, high: float) -> None:
    reference = REFERENCES[name].reference
    u = between(reference, uniforms(9, 4000), low, high)
    assert u.dtype == torch.float32
    assert ((u.double() >= low) & (u.double() < high)).all()
    ends = reference.cdf(torch.tensor([low, high], dtype=torch.float64))
    assert_uniform((reference.cdf(u.double()) - ends[0]) / (ends[1] - ends[0]), failure_rate=RATE)


@pytest.mark.parametrize("name", REFERENCES)
def test_the_ends_of_a_stratum_stay_inside(name: str) -> None:
    extreme = torch.tensor([2**-24, 0.5, 1 - 2**-24])
    borders = torch.linspace(0, 1, 21, dtype=torch.float64).tolist()
    for low, high in pairwise(borders):
        u = between(REFERENCES[name].reference, extreme, low, high).double()
        assert ((u >= low) & (u < high)).all()
        assert (u.diff() >= 0).all()


# noise


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_out_the_noise_of_one_process(world: int) -> None:
    tick, like = Tick(seed=1, step=5), torch.zeros(2, 3, 4)
    parts = [noise(replace(tick, rank=r, world=world, micro=r), "probe", like) for r in range(world)]
    whole = noise(tick, "probe", torch.zeros(2 * world, 3, 4))
    assert torch.equal(torch.cat(parts), whole)
    assert len(whole.unique()) == whole.numel()
    for other in (noise(replace(tick, step=6), "probe", like), noise(tick, "other", like)):
        assert not (other == whole[:2]).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_is_normal_and_like_the_examples(dtype: torch.dtype) -> None:
    drawn = noise(Tick(), "probe", torch.zeros(8, 3000, dtype=dtype))
    assert (drawn.shape, drawn.dtype) == ((8, 3000), dtype)
    if dtype != torch.bfloat16:
        assert_uniform(torch.special.ndtr(drawn.double()).flatten(), failure_rate=RATE)


def test_noise_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    noise(Tick(), "probe", torch.zeros(4, 3))
    times(Tick(), "probe", 4, CPU)
    assert torch.equal(before, torch.get_rng_state())

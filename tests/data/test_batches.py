"""Every image once an epoch, whoever trains; a batch is a function of seed and tick."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.core.tick import Tick
from stepwell.data.batches import Batches, Prefetched
from stepwell.data.load import load
from stepwell.data.source import BadData, InMemory, OnDisk, to_unit


def source(size: int, flips: bool = False) -> InMemory:
    """Images that show their index on the left and 0 on the right."""
    pixels = torch.zeros(size, 1, 1, 2, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = torch.arange(size)
    return InMemory(pixels, name="numbers", labels=torch.arange(size), classes=size, flips=flips)


def ticks(world: int, accumulate: int) -> Iterator[Tick]:
    for step in count():
        for micro in range(accumulate):
            for rank in range(world):
                yield Tick(3, step, micro, rank, world)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("size", "batch"), [(10, 4), (24, 4), (7, 7), (5, 64), (1, 3), (100, 1)])
def test_all_ranks_together_see_every_image_once_an_epoch(
    world: int, accumulate: int, size: int, batch: int
) -> None:
    batches = Batches(source(size), batch, seed=3)
    epochs = 6
    needed = -(-size * epochs // batch)
    seen = torch.cat([batches.at(t, accumulate).indices for t in islice(ticks(world, accumulate), needed)])
    for epoch in seen[: size * epochs].reshape(epochs, size):
        assert torch.equal(epoch.sort().values, torch.arange(size))


def test_the_sequence_does_not_depend_on_who_deals_it() -> None:
    def dealt(world: int, accumulate: int) -> Tensor:
        batches = Batches(source(50), 4, seed=3)
        return torch.cat([batches.at(t, accumulate).indices for t in islice(ticks(world, accumulate), 60)])

    assert all(torch.equal(dealt(1, 1), dealt(*shape)) for shape in ((2, 1), (1, 3), (3, 2)))


def test_epochs_and_seeds_have_their_own_order() -> None:
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        return tuple(Batches(source(100), 100, seed).at(Tick(0, epoch)).indices.tolist())

    assert len({order(seed, epoch) for seed in range(4) for epoch in range(4)}) == 16
    assert order(0, 0)[:5] == (74, 50, 6, 78, 10), "changing it changes people's results"


def test_a_batch_is_a_pure_function() -> None:
    every = list(islice(ticks(2, 2), 40))
    straight = Batches(source(30, flips=True), 8, seed=3)
    first = {tick: straight.at(tick, 2) for tick in every}
    jumping = Batches(source(30, flips=True), 8, seed=3)
    for tick in reversed(every):
        torch.manual_seed(tick.step)
        again = jumping.at(tick, 2)
        assert torch.equal(again.indices, first[tick].indices)
        assert torch.equal(again.x0, first[tick].x0)


def test_images_labels_and_indices_belong_together() -> None:
    batch = Batches(source(30), 8, seed=0).at(Tick(0, 5))
    assert batch.x0.dtype == torch.float32
    assert batch.x0.shape == (8, 1, 1, 2)
    assert batch.labels is not None
    assert torch.equal(batch.labels, batch.indices)
    assert torch.equal(batch.x0[:, 0, 0, 0], to_unit(batch.indices))
    bare = InMemory(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), name="bare")
    assert Batches(bare, 2, seed=0).at(Tick()).labels is None


def test_half_of_the_images_are_mirrored_where_the_data_allow() -> None:
    tick = Tick(1, 2)
    plain = Batches(source(200), 100, seed=0).at(tick).x0
    flipped = Batches(source(200, flips=True), 100, seed=0).at(tick).x0
    mirrored = tick.uniform("flip", 100) < 0.5
    assert torch.equal(flipped[mirrored], plain[mirrored].flip(-1))
    assert torch.equal(flipped[~mirrored], plain[~mirrored])
    assert 25 < int(mirrored.sum()) < 75


@pytest.mark.parametrize(("workers", "memory_bytes"), [(1, 0), (4, 0), (3, 2 << 30)])
def test_folders_give_equal_batches_wherever_they_are_kept(
    tmp_path: Path, workers: int, memory_bytes: int
) -> None:
    rng = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    base = Batches(load(str(tmp_path), size=8).train, 5, seed=0)
    other = Batches(load(str(tmp_path), size=8, workers=workers, memory_bytes=memory_bytes).train, 5, seed=0)
    ahead = Prefetched(other)
    for step in range(6):
        assert torch.equal(ahead.at(Tick(0, step)).x0, base.at(Tick(0, step)).x0)


def test_looking_ahead_changes_nothing() -> None:
    batches = Batches(source(30, flips=True), 8, seed=3)
    ahead = Prefetched(batches)
    # Out of turn too, as after a resume: what was made ahead is then thrown away.
    for tick in [*islice(ticks(1, 2), 20), Tick(0, 3), Tick(0, 9, 1), Tick(0, 10), Tick(1, 11)]:
        assert torch.equal(ahead.at(tick, 2).x0, batches.at(tick, 2).x0)


def test_errors_of_the_thread_reach_the_caller() -> None:
    def decode(index: int) -> Tensor:
        if index == 13:
            raise BadData("13 is broken")
        return torch.zeros(1, 2, 2, dtype=torch.uint8)

    batches = Batches(OnDisk(decode, 20, (1, 2, 2), name="disk"), 4, seed=0)
    ahead = Prefetched(batches)
    with pytest.raises(BadData, match="13 is broken"):
        [ahead.at(Tick(0, step)) for step in range(5)]


def test_what_cannot_work_is_refused() -> None:
    batches = Batches(source(4), 2, seed=0)
    with pytest.raises(InvalidParameter, match="no micro-batch 2 with accumulate=2"):
        batches.at(Tick(0, 0, micro=2), accumulate=2)
    with pytest.raises(InvalidParameter, match="batch must be a whole number"):
        Batches(source(4), 0, seed=0)
    with pytest.raises(BadData, match="empty has no images"):
        Batches(InMemory(torch.zeros(0, 1, 2, 2, dtype=torch.uint8), name="empty"), 2, seed=0)

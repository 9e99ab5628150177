"""Sources hand out the same pixels, wherever these are kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepwell.data.source import BadData, InMemory, OnDisk, split, to_pixels, to_unit


def pixels(count: int, channels: int = 1, size: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)


def test_pixels_survive_the_way_to_unit_and_back() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    unit = to_unit(every)
    assert unit.dtype == torch.float32
    assert unit[0] == -1
    assert unit[-1] == 1
    assert torch.equal(to_pixels(unit), every)
    assert torch.equal(to_unit(to_pixels(unit)), unit)


def test_pixels_are_clamped_and_rounded() -> None:
    x = torch.tensor([-7.0, 7.0, 0.002, -0.999])
    assert to_pixels(x).tolist() == [0, 255, 128, 0]
    assert x[0] == -7, "the argument is left alone"
    assert to_pixels(torch.tensor([1.0, -1.0], dtype=torch.bfloat16)).tolist() == [255, 0]


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_on_disk_is_in_memory_with_any_number_of_workers(workers: int) -> None:
    images, labels = pixels(30, 3), torch.arange(30) % 4
    memory = InMemory(images, name="m", labels=labels, classes=4)
    disk = OnDisk(lambda i: images[i], 30, (3, 4, 4), name="d", labels=labels, classes=4, workers=workers)
    indices = torch.tensor([3, 29, 0, 3, 17])
    assert torch.equal(memory.fetch(indices), disk.fetch(indices))
    assert disk.fetch(indices[:0]).shape == memory.fetch(indices[:0]).shape == (0, 3, 4, 4)
    assert (len(memory), memory.shape) == (len(disk), disk.shape)
    assert memory.labels is not None
    assert disk.labels is not None
    assert torch.equal(memory.labels, disk.labels)


@pytest.mark.parametrize(("count", "held"), [(2, 1), (9, 1), (50, 5), (20_001, 2000), (40_000, 2000)])
def test_a_tenth_is_held_out(count: int, held: int) -> None:
    images = torch.arange(count).to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 1, 1)
    labels = torch.arange(count)
    data = split(InMemory(images, name="all", labels=labels, classes=count, flips=True), ("first",))
    assert (len(data.train), len(data.held_out)) == (count - held, held)
    assert data.train.labels is not None
    assert data.held_out.labels is not None
    assert torch.equal(torch.cat([data.train.labels, data.held_out.labels]).sort().values, labels)
    where = torch.arange(held)
    assert torch.equal(data.held_out.fetch(where).flatten(), data.held_out.labels.to(torch.uint8))
    assert data.train.flips
    assert data.notes[0] == "first"
    assert f"held out {held:,} of {count:,}" in data.notes[1]


def test_the_split_is_fixed_and_ignores_the_global_seed() -> None:
    labels = torch.arange(100)
    source = InMemory(pixels(100), name="all", labels=labels, classes=100)
    torch.manual_seed(1)
    first = split(source).held_out.labels
    torch.manual_seed(2)
    again = split(source).held_out.labels
    assert first is not None
    assert again is not None
    assert torch.equal(first, again)
    assert first.tolist() == [1, 12, 20, 23, 34, 44, 68, 77, 92, 96], "changing it changes people's results"


def test_one_image_cannot_be_split() -> None:
    with pytest.raises(BadData, match="all has 1 image: at least 2"):
        split(InMemory(pixels(1), name="all"))


@pytest.mark.parametrize(
    ("images", "labels", "classes", "message"),
    [
        (torch.zeros(2, 1, 4, 4), None, 0, r"uint8 of shape \[N, C, H, W\], not torch.float32"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), None, 0, r"shape \[2, 4, 4\]"),
        (pixels(2), torch.tensor([0, 1, 1]), 2, r"2 images need labels of shape \[2\], not \[3\]"),
        (pixels(2), torch.tensor([0, 2]), 2, "labels run from 0 to 2"),
        (pixels(2), torch.tensor([-1, 1]), 2, "labels run from -1 to 1"),
    ],
)
def test_wrong_tensors_are_refused(images: Tensor, labels: Tensor | None, classes: int, message: str) -> None:
    with pytest.raises(BadData, match=message):
        InMemory(images, name="all", labels=labels, classes=classes)

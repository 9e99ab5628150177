"""Features on disk: resumed, shared between processes, the same whatever the batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from real_images import PatchMeans

from stepwell.data.source import InMemory
from stepwell.evaluate import feature_files as extraction
from stepwell.evaluate.distances import frechet_distance
from stepwell.evaluate.extractors import Extractor, extractor
from stepwell.evaluate.feature_files import BLOCK, ExtractionError, extract, statistics_of
from stepwell.evaluate.image_sets import SourceOfImages

COUNT = 3 * BLOCK + 10


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def images(seed: int = 0, count: int = COUNT) -> SourceOfImages:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, 4, 4), generator=generator, dtype=torch.uint8)
    return SourceOfImages(InMemory(pixels, name="noise"))


class Counting:
    """An extractor that counts images, and may be interrupted after some."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.seen, self._stop = 0, stop_after
        self._inner = extractor(PatchMeans(), size=4)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        if self._stop is not None and self.seen >= self._stop:
            raise KeyboardInterrupt
        self.seen += len(batch)
        return self._inner(batch)


def test_features_are_those_of_every_image_in_order() -> None:
    network, source = extractor(PatchMeans(), size=4), images()
    found = extract(source, network)
    assert found.count == COUNT
    torch.testing.assert_close(found.all(), network(source.fetch(list(range(COUNT)))))
    moments = found.moments()
    torch.testing.assert_close(moments.covariance, torch.cov(found.all().double().T))


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_batch_sizes_change_nothing_beyond_rounding(batch: int, cache: Path) -> None:
    network = extractor(PatchMeans(), size=4)
    whole = extract(images(), network, batch=32)
    expected = whole.all()
    for file in whole.folder.iterdir():
        file.unlink()
    torch.testing.assert_close(extract(images(), network, batch=batch).all(), expected, rtol=1e-6, atol=1e-6)


def test_an_interrupted_extraction_goes_on_where_it_was() -> None:
    first = Counting(stop_after=2 * BLOCK + 64)
    with pytest.raises(KeyboardInterrupt):
        extract(images(), first, batch=32)  # type: ignore[arg-type]
    second = Counting()
    found = extract(images(), second, batch=32)  # type: ignore[arg-type]
    assert second.seen == COUNT - 2 * BLOCK
    fresh = extractor(PatchMeans(), size=4)
    torch.testing.assert_close(found.all(), fresh(images().fetch(list(range(COUNT)))))
    third = Counting()
    extract(images(), third)  # type: ignore[arg-type]
    assert third.seen == 0


def test_other_images_counts_and_extractors_are_not_mixed_up() -> None:
    network = extractor(PatchMeans(), size=4)
    folders = {
        extract(images(), network).folder,
        extract(images(1), network).folder,
        extract(images(), network, count=100).folder,
        extract(images(), replace(network, identity="other")).folder,
    }
    assert len(folders) == 4


def test_a_damaged_block_is_made_again_and_a_missing_one_is_told() -> None:
    found = extract(images(), extractor(PatchMeans(), size=4))
    expected = found.all()
    block = found.folder / "block-000001.safetensors"
    block.write_bytes(block.read_bytes()[:-5])
    with pytest.raises(ExtractionError, match=r"block-000001.*Run the same command again"):
        found.all()
    counting = Counting()
    assert torch.equal(extract(images(), counting).all(), expected)  # type: ignore[arg-type]
    assert counting.seen == BLOCK


class Rank:
    """One of two processes, as a worker group sees it."""

    def __init__(self, rank: int) -> None:
        self.rank, self.world = rank, 2


def test_two_ranks_share_the_work_and_read_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = extract(images(), extractor(PatchMeans(), size=4))
    expected, folder = alone.all(), alone.folder
    for file in folder.iterdir():
        file.unlink()
    monkeypatch.setattr(extraction, "meet", lambda group: None)
    seen = []
    for rank in range(2):
        monkeypatch.setattr(extraction, "worker_group", lambda rank=rank: Rank(rank))
        counting = Counting()
        found = extract(images(), counting)  # type: ignore[arg-type]
        seen.append(counting.seen)
    assert seen == [2 * BLOCK, BLOCK + 10]
    assert torch.equal(found.all(), expected)


def test_statistics_are_computed_once_and_damaged_ones_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = extract(images(), extractor(PatchMeans(), size=4))
    first = statistics_of(found)
    monkeypatch.setattr(extraction.Features, "moments", lambda self: pytest.fail("computed again"))
    assert torch.equal(statistics_of(found).covariance, first.covariance)
    monkeypatch.undo()
    (found.folder / "statistics.npz").write_bytes(b"PK\x03\x04 cut off")
    assert torch.equal(statistics_of(found).covariance, first.covariance)


def test_the_distance_does_not_depend_on_the_order_of_images() -> None:
    network: Extractor = extractor(PatchMeans(), size=4)
    pixels = images().fetch(list(range(COUNT)))
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(3))
    shuffled = SourceOfImages(InMemory(pixels[order], name="shuffled"))
    a, b = (extract(source, network).moments() for source in (images(), shuffled))
    other = extract(images(4), network).moments()
    assert frechet_distance(a, b) < 1e-12 * float(a.covariance.trace())
    assert frechet_distance(a, other) == pytest.approx(frechet_distance(b, other), rel=1e-9)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "file"))
    with pytest.raises(ExtractionError, match="STEPWELL_CACHE"):
        extract(images(), extractor(PatchMeans(), size=4))

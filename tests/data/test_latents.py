"""Latents as training sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from autoencoders import MeanOfTiles
from scipy import stats

from stepwell.core.tick import Tick
from stepwell.data.batches import Batches
from stepwell.data.encode import Storage, encode, plan_of
from stepwell.data.latents import LatentSource
from stepwell.data.load import load
from stepwell.data.source import BadData, DataSet, InMemory, LatentOrigin, split

COUNT = 60
ROWS = torch.tensor([3, 40, 3, 17, 53, 0])


def images(flips: bool) -> DataSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (COUNT, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return split(InMemory(pixels, name="noise", labels=torch.arange(COUNT) % 4, classes=4, flips=flips))


@pytest.fixture(scope="module", params=["plain", "posterior", "mirrored", "both"])
def cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("latents"), request.param)


def made(folder: Path, kind: str) -> Path:
    data = images(flips=kind in ("mirrored", "both"))
    encoder = MeanOfTiles(posterior=kind in ("posterior", "both"))
    encode(folder, plan_of("noise", data, encoder, Storage("fp32", 16)), data, encoder)
    return folder


def source(folder: Path, **options: object) -> LatentSource:
    found = load(str(folder), **options).train  # type: ignore[arg-type]
    assert isinstance(found, LatentSource)
    return found


def test_examples_are_a_function_of_the_tick(cache: Path) -> None:
    tick = Tick(seed=1, step=2)
    first = source(cache).examples(ROWS, tick)
    assert first.dtype == torch.float32
    assert torch.equal(source(cache).examples(ROWS, tick), first)
    plain = source(cache).examples(ROWS)
    random = not torch.equal(first, plain)
    for other in (replace(tick, step=3), replace(tick, seed=2), replace(tick, rank=1, world=2)):
        assert torch.equal(source(cache).examples(ROWS, other), first) != random
    # Each example keeps to itself: what was handed out may be written to.
    first.zero_()
    assert torch.equal(source(cache).examples(ROWS), plain)


def test_mapped_from_disk_is_the_same_as_in_memory(cache: Path) -> None:
    near, far = source(cache), source(cache, memory_bytes=0)
    assert near.in_memory
    assert not far.in_memory
    for tick in (None, Tick(step=4)):
        assert torch.equal(near.examples(ROWS, tick), far.examples(ROWS, tick))
    assert far.examples(torch.empty(0, dtype=torch.int64)).shape == (0, 3, 2, 2)


def test_mirrored_examples_are_the_latents_of_mirrored_images(tmp_path: Path) -> None:
    found, data = source(made(tmp_path, "mirrored")), images(flips=True)
    tick = Tick(step=1)
    pixels = data.train.examples(ROWS, tick)
    means = MeanOfTiles().encode(pixels)[0]
    assert torch.allclose(found.examples(ROWS, tick), (means - found.shift) * found.scale, atol=1e-5)
    assert not torch.equal(found.examples(ROWS, tick), found.examples(ROWS))
    still = source(tmp_path, flips=False)
    assert torch.equal(still.examples(ROWS, tick), still.examples(ROWS))


def test_posterior_draws_have_the_posterior_mean_and_deviation(tmp_path: Path) -> None:
    """Two tests of 12,000 values at 1e-6 each: fails twice in a million if the draws are right."""
    found = source(made(tmp_path, "posterior"))
    rows = torch.zeros(1000, dtype=torch.int64)
    drawn = found.unscaled(found.examples(rows, Tick(seed=5)))
    z = ((drawn - found.unscaled(found.examples(rows))) / 0.25).flatten().double()
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-6
    assert stats.chi2.cdf(float(z.square().sum()), len(z)) == pytest.approx(0.5, abs=0.5 - 5e-7)


def test_training_sees_mean_zero_and_deviation_one(tmp_path: Path) -> None:
    found = source(made(tmp_path, "plain"))
    seen = found.examples(torch.arange(len(found)))
    assert torch.allclose(seen.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(seen.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)
    means = MeanOfTiles().encode(images(False).train.examples(ROWS))[0]
    assert torch.allclose(found.unscaled(found.examples(ROWS)), means, atol=1e-5)


def test_batches_deal_latents_with_their_labels(tmp_path: Path) -> None:
    found = source(made(tmp_path, "both"), labels=True)
    batch = Batches(found, 8, seed=0).at(Tick(step=3))
    assert torch.equal(batch.x0, found.examples(batch.indices, Tick(step=3)))
    assert torch.equal(batch.labels, images(True).train.labels[batch.indices])


def test_the_data_set_says_where_its_latents_come_from(tmp_path: Path) -> None:
    found = load(str(made(tmp_path, "plain")))
    assert found.latents == LatentOrigin("tiles", "f" * 64, (3, 8, 8))
    assert found.train.labels is None
    assert found.train.classes == 0
    assert found.notes[-1] == "latents 3x2x2 of noise by tiles"
    assert found.train.shape == found.held_out.shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 16}, "latents of 8x8 images: size=16 cannot change that. Leave size out"),
        ({"channels": 1}, "images with 3 channels: channels=1 cannot change that"),
        ({"flips": True}, "no mirrored latents: encode again .* with --flips"),
    ],
)
def test_what_a_cache_cannot_give_is_refused(tmp_path: Path, options: dict[str, int], said: str) -> None:
    with pytest.raises(BadData, match=said):
        load(str(made(tmp_path, "plain")), **options)


def test_what_a_cache_was_made_with_may_be_asked_for(tmp_path: Path) -> None:
    found = load(str(made(tmp_path, "mirrored")), size=8, channels=3, flips=True, labels=True)
    assert found.train.shape == (3, 2, 2)


def test_labels_that_were_not_encoded_are_missed(tmp_path: Path) -> None:
    pixels = torch.zeros((4, 3, 8, 8), dtype=torch.uint8)
    data, encoder = split(InMemory(pixels, name="dark")), MeanOfTiles(posterior=False)
    encode(tmp_path, plan_of("dark", data, encoder, Storage()), data, encoder)
    with pytest.raises(BadData, match=r"has no labels: encode again .* with --labels"):
        load(str(tmp_path), labels=True)
    # A constant channel has no deviation to divide by.
    assert load(str(tmp_path)).train.examples(torch.arange(3)).abs().max() < 1e-3


def test_a_folder_of_images_with_a_manifest_of_its_own_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": "something else"}')
    with pytest.raises(BadData, match="none is a readable image"):
        load(str(tmp_path))


def test_a_cache_that_may_not_be_written_to_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "plain")

    def refuse(path: Path, body: bytes) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("stepwell.data.latents.write_atomic", refuse)
    assert len(load(str(tmp_path)).train) == 54

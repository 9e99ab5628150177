"""Encoding: what is written, what a second run keeps, and what it refuses."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from autoencoders import MeanOfTiles
from gloo import leave
from torch import distributed as dist
from torch import multiprocessing
from torch.nn import functional as F

from stepwell.core.errors import InvalidParameter
from stepwell.data.encode import Storage, encode, plan_of
from stepwell.data.latent_cache import NAME, Manifest, read_manifest
from stepwell.data.load import load
from stepwell.data.source import BadData, DataSet, InMemory, split, to_unit
from stepwell.runs import io

COUNT, SHARD, BATCH = 50, 8, 3
"""45 to train on make six shards of three batches (the last of two), 5 held out one of two."""
BATCHES = 6 * 3 - 1 + 2


def images(seed: int = 0, size: int = 8, flips: bool = False) -> DataSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (COUNT, 3, size, size), generator=generator, dtype=torch.uint8)
    labels = torch.arange(COUNT) % 5
    return split(InMemory(pixels, name="noise", labels=labels, classes=5, flips=flips))


def make(
    folder: Path,
    data: DataSet | None = None,
    encoder: MeanOfTiles | None = None,
    storage: Storage | None = None,
    batch: int = BATCH,
) -> Manifest:
    """Encode noise in small shards."""
    data, encoder = data or images(), encoder or MeanOfTiles()
    plan = plan_of("noise", data, encoder, storage or Storage("fp32", SHARD))
    return encode(folder, plan, data, encoder, batch=batch)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_cache_is_what_the_encoder_said(tmp_path: Path) -> None:
    made, data = make(tmp_path), images()
    found = load(str(tmp_path), labels=True)
    for cached, source in ((found.train, data.train), (found.held_out, data.held_out)):
        rows = torch.arange(len(source))
        means = F.avg_pool2d(to_unit(source.fetch(rows)), 4) + 2 * torch.arange(3.0)[:, None, None]
        shift, scale = (torch.tensor(values)[:, None, None] for values in (made.shift, made.scale))
        assert torch.allclose(cached.examples(rows), (means - shift) * scale, atol=1e-5)
        assert torch.equal(cached.labels, source.labels)
        assert cached.classes == 5
    assert sorted(path.name for path in tmp_path.glob("*.safetensors*")) == [
        "held_out-00000.safetensors",
        *(f"train-{number:05d}.safetensors" for number in range(6)),
    ]


@pytest.mark.parametrize("flips", [False, True])
def test_the_statistics_are_those_of_all_draws_of_the_training_split(tmp_path: Path, flips: bool) -> None:
    data = images(flips=flips)
    made = make(tmp_path, data)
    assert made.plan.mirrored == flips
    means = F.avg_pool2d(to_unit(data.train.fetch(torch.arange(45))).double(), 4)
    means = means + 2 * torch.arange(3.0)[:, None, None]
    assert made.mean == pytest.approx(means.mean((0, 2, 3)).tolist(), abs=1e-6)
    # The posterior's own variance counts: without it draws would have a deviation above 1.
    whole = means.var((0, 2, 3), correction=0) + 0.25**2
    assert made.std == pytest.approx(whole.sqrt().tolist(), rel=1e-6)
    assert made.shift == made.mean
    assert made.scale == pytest.approx([1 / s for s in made.std])


def test_one_scale_for_all_channels_or_a_given_one(tmp_path: Path) -> None:
    made = make(tmp_path / "a", storage=Storage("fp32", SHARD, "global"))
    mean, std = torch.tensor(made.mean), torch.tensor(made.std)
    whole = float((std.square() + (mean - mean.mean()).square()).mean().sqrt())
    assert made.shift == (0.0,) * 3
    assert made.scale == pytest.approx([1 / whole] * 3)
    assert make(tmp_path / "b", storage=Storage("fp32", SHARD, "0.18215")).scale == (0.18215,) * 3
    for wrong in ("none", "-1", "nan", "inf"):
        with pytest.raises(InvalidParameter, match="channel, global or a factor"):
            Storage(scale=wrong)


@pytest.mark.parametrize("at", range(BATCHES))
def test_an_interrupted_encode_goes_on_where_it_stopped(tmp_path: Path, at: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    make(whole)
    first, second = MeanOfTiles(fails_at=at), MeanOfTiles()
    with pytest.raises(KeyboardInterrupt):
        make(broken, encoder=first)
    with pytest.raises(BadData, match=r"unfinished folder of latents: .*stepwell data encode noise"):
        load(str(broken))
    make(broken, encoder=second)
    assert content(broken) == content(whole)
    # Only the shard that was under way is begun again.
    finished = min(at // 3, 5) if at < 17 else 6
    assert sum(second.seen) == COUNT - min(finished * SHARD, 45)


def test_a_finished_cache_is_not_made_again(tmp_path: Path) -> None:
    make(tmp_path)
    before, second = content(tmp_path), MeanOfTiles()
    make(tmp_path, encoder=second)
    assert second.seen == []
    assert content(tmp_path) == before


def test_what_was_left_unfinished_is_checked_before_it_is_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, encoder=MeanOfTiles(fails_at=7))
    _flip_a_byte(tmp_path / "train-00001.safetensors")
    again = MeanOfTiles()
    make(tmp_path, encoder=again)
    assert sum(again.seen) == COUNT - SHARD
    load(str(tmp_path))


def _flip_a_byte(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[-5] ^= 1
    path.write_bytes(body)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_flip_a_byte, "does not match its checksum"),
        (_cut, "bytes instead of"),
        (Path.unlink, "is missing"),
    ],
)
@pytest.mark.parametrize("read_before", [False, True])
def test_a_damaged_shard_is_named_and_it_alone_made_again(
    tmp_path: Path, harm: object, said: str, read_before: bool
) -> None:
    make(tmp_path)
    before = content(tmp_path)
    if read_before:
        load(str(tmp_path))
    harm(tmp_path / "train-00002.safetensors")  # type: ignore[operator]
    with pytest.raises(BadData, match=f"train-00002.safetensors .*{said}.*stepwell data encode noise"):
        load(str(tmp_path))
    again = MeanOfTiles()
    make(tmp_path, encoder=again)
    assert sum(again.seen) == SHARD
    load(str(tmp_path))
    (tmp_path / ".verified.json").unlink()
    assert content(tmp_path) == before


@pytest.mark.parametrize("finished", [True, False])
def test_another_autoencoder_data_or_storage_never_mix(tmp_path: Path, finished: bool) -> None:
    if finished:
        make(tmp_path)
    else:
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path, encoder=MeanOfTiles(fails_at=4))
    before = content(tmp_path)
    for said, more in (
        ("fingerprint ffffffffffff..., not eeee", {"encoder": MeanOfTiles(fingerprint="e" * 64)}),
        ("data digest", {"data": images(seed=1)}),
        ("dtype fp32, not fp16", {"storage": Storage("fp16", SHARD)}),
        ("scale channel, not global", {"storage": Storage("fp32", SHARD, "global")}),
        ("mirrored False, not True", {"data": images(flips=True)}),
    ):
        with pytest.raises(BadData, match=f"{said}.*Choose another --out"):
            make(tmp_path, **more)  # type: ignore[arg-type]
    assert content(tmp_path) == before


def test_a_folder_of_something_else_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"")
    with pytest.raises(BadData, match="not empty and not a folder of latents"):
        make(tmp_path)
    with pytest.raises(BadData, match="cannot write into"):
        make(tmp_path / "photo.png" / "below")


def test_images_that_are_no_whole_latents_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"10x10 pixels.*one latent of 4x4.*such as --size 8"):
        make(tmp_path / "out", data=images(size=10))
    assert not (tmp_path / "out").exists()


def test_latents_are_not_encoded_again(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(BadData, match="already is a folder of latents"):
        plan_of("x", load(str(tmp_path)), MeanOfTiles(), Storage())


def test_latents_that_do_not_fit_half_precision_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="not finite in fp16: encode with --dtype fp32"):
        make(tmp_path, encoder=MeanOfTiles(deviation=1e6), storage=Storage("fp16", SHARD))
    make(tmp_path / "b", encoder=MeanOfTiles(deviation=1e6))


def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = io.write_atomic

    def full(path: Path, body: bytes) -> None:
        if path.name == "train-00002.safetensors":
            raise OSError(28, "No space left on device")
        real(path, body)

    monkeypatch.setattr("stepwell.data.latent_cache.write_atomic", full)
    with pytest.raises(BadData, match=r"No space left on device.*finished shards are kept"):
        make(tmp_path)
    monkeypatch.undo()
    again = MeanOfTiles()
    make(tmp_path, encoder=again)
    assert sum(again.seen) == COUNT - 2 * SHARD


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format": "stepwell latents", "version": 9}', "has format 9, and this stepwell reads 1"),
        ('{"format": "stepwell latents", "version": 1}', "is damaged"),
        ('{"format": "stepwell latents", ', "not valid JSON"),
    ],
)
def test_a_manifest_that_cannot_be_understood_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(BadData, match=said):
        load(str(tmp_path))


def test_a_moved_source_is_the_same_source(tmp_path: Path) -> None:
    make(tmp_path)
    again = MeanOfTiles(name="elsewhere")
    plan = plan_of("moved", images(), again, Storage("fp32", SHARD))
    encode(tmp_path, plan, images(), again)
    assert again.seen == []
    assert read_manifest(tmp_path).plan.autoencoder == "elsewhere"


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    encoder = MeanOfTiles()
    make(Path(folder) / "two", encoder=encoder)
    torch.save(encoder.seen, Path(folder) / f"{rank}.pt")
    leave()


@pytest.mark.full
def test_two_processes_make_the_cache_of_one(tmp_path: Path) -> None:
    multiprocessing.spawn(_work, (str(tmp_path),), nprocs=2)
    make(tmp_path / "one")
    assert content(tmp_path / "two") == content(tmp_path / "one")
    shares = [sum(torch.load(tmp_path / f"{rank}.pt")) for rank in range(2)]
    assert sum(shares) == COUNT
    assert min(shares) > 0

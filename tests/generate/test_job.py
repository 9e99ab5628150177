"""Images on disk: written once, resumed where they stopped, never mixed with those of something else."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import stepwell
from stepwell.core.errors import InvalidParameter, StepwellError
from stepwell.core.ranks import Alone
from stepwell.generate.images import Request, generate
from stepwell.generate.job import ImageJob, write_images
from stepwell.generate.writers import OtherImages
from stepwell.models.registry import build_model

REQUEST = Request(7, (3, 8, 8), steps=2, batch=2, labels=(0, 2))


@pytest.fixture(scope="module")
def job() -> ImageJob:
    torch.manual_seed(0)
    network = build_model("micro", channels=3, image_size=8, classes=3, label_dropout=0.1).eval()
    return ImageJob(network, stepwell.process("linear", timesteps=20), REQUEST)


@pytest.fixture(scope="module")
def pixels(job: ImageJob) -> np.ndarray:
    """[7, 8, 8, 3]."""
    return torch.cat(list(generate(job.denoiser, job.process, REQUEST))).permute(0, 2, 3, 1).numpy()


def of_folder(folder: Path) -> np.ndarray:
    return np.stack([np.asarray(Image.open(path)) for path in sorted(folder.glob("*.png"))])


def test_folder_and_array_hold_the_images_in_order(job: ImageJob, pixels: np.ndarray, tmp_path: Path) -> None:
    assert write_images(job, tmp_path / "folder", Alone()) == 7
    assert np.array_equal(of_folder(tmp_path / "folder"), pixels)
    assert write_images(job, tmp_path / "deep" / "a.npz", Alone()) == 7
    with np.load(tmp_path / "deep" / "a.npz") as found:
        assert np.array_equal(found["images"], pixels)
        assert found["labels"].tolist() == [0, 2, 0, 2, 0, 2, 0]
    kept = {path.name for path in (tmp_path / "deep").iterdir()}
    assert kept == {"a.npz", "a.npz.generation.json"}
    unconditional = replace(job, request=replace(REQUEST, labels=()))
    write_images(unconditional, tmp_path / "b.npz", Alone())
    assert np.load(tmp_path / "b.npz").files == ["images"]


def test_a_sheet_is_made_anew_and_stays_small(job: ImageJob, tmp_path: Path) -> None:
    for _ in range(2):
        assert write_images(job, tmp_path / "a.png", Alone()) == 7
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width == (3 * 9 - 1) * 8
    with pytest.raises(InvalidParameter, match="a sheet of 4,097 images is too large"):
        write_images(replace(job, request=replace(REQUEST, count=4097)), tmp_path / "b.png", Alone())


class Stopped(Exception):
    pass


def stopping_after(batches: int) -> object:
    """A decoder that dies in the middle."""
    left = iter(range(batches + 1))

    def decode(x: torch.Tensor) -> torch.Tensor:
        from stepwell.data.source import to_pixels

        if next(left, None) is None:
            raise Stopped
        return to_pixels(x)

    return decode


@pytest.mark.parametrize("name", ["folder", "a.npz"])
def test_what_was_stopped_is_continued(name: str, job: ImageJob, pixels: np.ndarray, tmp_path: Path) -> None:
    out = tmp_path / name
    # An .npz decodes once more, to know its shape.
    dying = replace(job, decode=stopping_after(2 if name == "a.npz" else 1))
    with pytest.raises(Stopped):
        write_images(dying, out, Alone())
    heard: list[tuple[int, bool]] = []
    assert write_images(job, out, Alone(), lambda count, made: heard.append((count, made))) == 3
    assert sorted(heard) == [(1, True), (2, False), (2, False), (2, True)]
    found = of_folder(out) if name == "folder" else np.load(out)["images"]
    assert np.array_equal(found, pixels)
    assert write_images(job, out, Alone()) == 0, "and then there is nothing left to do"


def test_a_folder_grows_and_mends(job: ImageJob, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_images(job, folder, Alone())
    before = of_folder(folder)
    (folder / "000003.png").unlink()
    grown = replace(job, request=replace(REQUEST, count=10))
    # Two images of the batch with the gap, and the batches of images 6 to 9.
    assert write_images(grown, folder, Alone()) == 6
    after = of_folder(folder)
    assert len(after) == 10
    # The last image was in a batch of one, and is in one of two: a level of 255 at most.
    assert np.array_equal(after[:6], before[:6])
    assert np.abs(after[6].astype(int) - before[6]).max() <= 1


@pytest.mark.parametrize("name", ["folder", "a.npz"])
def test_images_of_something_else_are_not_mixed_in(name: str, job: ImageJob, tmp_path: Path) -> None:
    out = tmp_path / name
    write_images(job, out, Alone())
    for key, value in {"seed": 1, "steps": 3, "solver": "heun", "guidance": 2.0, "labels": (1,)}.items():
        with pytest.raises(OtherImages, match=f"{key} was .* choose another --out"):
            write_images(replace(job, request=replace(REQUEST, **{key: value})), out, Alone())
    torch.manual_seed(1)
    other = build_model("micro", channels=3, image_size=8, classes=3, label_dropout=0.1).eval()
    with pytest.raises(OtherImages, match="weights was"):
        write_images(replace(job, denoiser=other), out, Alone())
    if name == "a.npz":
        with pytest.raises(OtherImages, match="count was 7 and is 8"):
            write_images(replace(job, request=replace(REQUEST, count=8)), out, Alone())
    assert write_images(replace(job, request=replace(REQUEST, batch=4)), out, Alone()) == 0


def test_places_that_cannot_be_used(job: ImageJob, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.png").write_bytes(b"")
    (tmp_path / "theirs.npz").write_bytes(b"")
    (tmp_path / "file").write_bytes(b"")
    for name, said in {
        "photos": "not of stepwell generate",
        "theirs.npz": "not of stepwell generate",
        "file": "is a file",
        "a.jpg": "a folder of PNGs, an .npz or a .png sheet",
    }.items():
        with pytest.raises(StepwellError, match=said):
            write_images(job, tmp_path / name, Alone())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine.png", "photos", "theirs.npz"]
    write_images(job, tmp_path / "folder", Alone())
    (tmp_path / "folder" / "generation.json").write_text("{half")
    with pytest.raises(OtherImages, match="is damaged"):
        write_images(job, tmp_path / "folder", Alone())


def test_a_request_that_cannot_be_met_leaves_nothing_behind(job: ImageJob, tmp_path: Path) -> None:
    for changes in ({"steps": 21}, {"labels": (9,)}, {"solver": "unipc", "steps": 20}):
        with pytest.raises(InvalidParameter):
            write_images(replace(job, request=replace(REQUEST, **changes)), tmp_path / "x", Alone())
    assert not (tmp_path / "x").exists()


class Grey(torch.nn.Module):
    """x0 = 0, at no cost."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, time: torch.Tensor, condition: object) -> torch.Tensor:
        return torch.zeros_like(x)


def peak_kilobytes(count: int, out: Path) -> int:
    """The most memory that this process has while it writes so many images of 28 kB."""
    process = stepwell.process("linear", prediction="x0")
    job = ImageJob(Grey(), process, Request(count, (3, 96, 96), steps=1, batch=25))
    Path("/proc/self/clear_refs").write_text("5")
    write_images(job, out, Alone())
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def growth_kilobytes(name: str, folder: Path) -> int:
    """How much more memory 1,500 more images need."""
    peak_kilobytes(25, folder / "first" / name)
    few = peak_kilobytes(50, folder / "few" / name)
    return peak_kilobytes(1550, folder / "many" / name) - few


@pytest.fixture(scope="module")
def fresh() -> Iterator[ProcessPoolExecutor]:
    """A process without memory that earlier tests have freed and the allocator kept."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        yield process


@pytest.mark.full
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's peak memory")
@pytest.mark.parametrize("name", ["folder", "images.npz", "sheet.png"])
def test_memory_does_not_grow_with_the_number_of_images(
    name: str, tmp_path: Path, fresh: ProcessPoolExecutor
) -> None:
    growth = fresh.submit(growth_kilobytes, name, tmp_path).result()
    # 1,500 more images are 41 MB of pixels; the allocator's ups and downs are 5 to 14 MB. A sheet is held.
    assert (growth < 25_000) == (name != "sheet.png")

"""Folders as people have them: all sizes, modes and formats, with things in them that are no images."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from stepwell.data.load import load
from stepwell.data.source import BadData, DataSet


def picture(seed: int = 0, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


def fill(folder: Path, count: int, **options: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        picture(number, **options).save(folder / f"{number:03}.png")  # type: ignore[arg-type]
    return folder


def every_image(data: DataSet) -> Tensor:
    return torch.cat([part.fetch(torch.arange(len(part))) for part in (data.train, data.held_out)])


def only_image(folder: Path, image: Image.Image, name: str = "a.png", **options: int) -> Tensor:
    """What one picture becomes: it lies there twice, since one cannot be split."""
    folder.mkdir(exist_ok=True)
    for copy in ("1" + name, "2" + name):
        image.save(folder / copy, exif=image.getexif())
    images = every_image(load(str(folder), **options))  # type: ignore[arg-type]
    assert torch.equal(images[0], images[1])
    return images[0]


def test_square_images_of_one_size_are_kept_to_the_pixel(tmp_path: Path) -> None:
    data = load(str(fill(tmp_path, 10)))
    assert data.train.shape == (3, 8, 8)
    assert (len(data.train), len(data.held_out)) == (9, 1)
    assert data.train.labels is None
    assert data.train.classes == 0
    stored = {np.asarray(picture(number)).transpose(2, 0, 1).tobytes() for number in range(10)}
    assert {image.numpy().tobytes() for image in every_image(data)} == stored


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_is_read(tmp_path: Path, mode: str, channels: int) -> None:
    base = picture(3, (12, 8), "L") if mode in ("I", "I;16") else picture(3, (12, 8))
    suffix = "tiff" if mode in ("CMYK", "YCbCr", "I") else "png"
    image = only_image(tmp_path, base.convert(mode), f"a.{suffix}", size=8, channels=channels)
    assert image.shape == (channels, 8, 8)
    assert image.dtype == torch.uint8


@pytest.mark.parametrize(("modes", "channels"), [(("L", "1", "LA", "I;16"), 1), (("L", "RGB"), 3)])
def test_grey_only_if_all_are_grey(tmp_path: Path, modes: tuple[str, ...], channels: int) -> None:
    for mode in modes:
        picture(0, mode="L").convert(mode).save(tmp_path / f"{mode.replace(';', '')}.png")
    assert load(str(tmp_path)).train.shape == (channels, 8, 8)


@pytest.mark.parametrize("mode", ["I;16", "I"])
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path, mode: str) -> None:
    values = np.array([[0, 257], [32896, 65535]], dtype=np.uint16 if mode == "I;16" else np.int32)
    image = only_image(tmp_path, Image.fromarray(values), "a.png" if mode == "I;16" else "a.tiff")
    assert image.tolist() == [[[0, 1], [128, 255]]]


def test_transparent_pixels_are_white_whatever_hides_behind_them(tmp_path: Path) -> None:
    image = Image.new("RGBA", (2, 2), (200, 0, 0, 0))
    image.putpixel((0, 0), (10, 20, 30, 255))
    seen = only_image(tmp_path / "rgba", image)
    assert seen[:, 0, 0].tolist() == [10, 20, 30]
    assert (seen[:, 1, 1] == 255).all()
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 9, 9, 9])
    palette.info["transparency"] = 1
    palette.putpixel((0, 0), 0)
    seen = only_image(tmp_path / "palette", palette)
    assert (seen[:, 0, 0] == 0).all()
    assert (seen[:, 1, 1] == 255).all()


def test_exif_orientation_turns_the_image(tmp_path: Path) -> None:
    image = Image.new("L", (8, 8), 0)
    image.paste(255, (0, 0, 8, 4))
    image.getexif()[0x0112] = 6  # stored lying on its side: turn it clockwise to look at it
    seen = only_image(tmp_path, image)[0]
    assert (seen[:, 4:] == 255).all()
    assert (seen[:, :4] == 0).all()


def test_resized_by_the_shorter_side_and_cropped_in_the_centre(tmp_path: Path) -> None:
    image = Image.new("L", (40, 20), 0)
    image.paste(255, (10, 0, 30, 20))
    for name, turned in (("wide", image), ("tall", image.transpose(Image.Transpose.ROTATE_90))):
        assert (only_image(tmp_path / name, turned, size=10) > 230).all(), "the white middle alone is left"
    fine = Image.fromarray(np.tile(np.array([[0, 255], [255, 0]], np.uint8), (32, 32)))
    small = only_image(tmp_path / "fine", fine, size=8)
    assert (small.to(torch.int64) - 127).abs().max() <= 2, "a fine pattern becomes grey, not stripes"


def test_different_sizes_need_a_size(tmp_path: Path) -> None:
    fill(tmp_path / "a", 2)
    fill(tmp_path / "b", 2, size=(30, 20))
    with pytest.raises(BadData, match=r"different sizes, such as 8x8 and 30x20. Write size=N"):
        load(str(tmp_path))
    with pytest.raises(BadData, match=r"its images are 30x20, which is not square. Write size=N"):
        load(str(tmp_path / "b"))
    assert load(str(tmp_path), size=16).train.shape == (3, 16, 16)


def test_nested_folders_hidden_files_and_links(tmp_path: Path) -> None:
    root = fill(tmp_path / "root", 2)
    fill(root / "deep" / "er", 3)
    fill(root / ".hidden", 4)
    (root / ".DS_Store").write_bytes(b"rubbish")
    fill(tmp_path / "elsewhere", 5)
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "deep" / "loop").symlink_to(root)
    data = load(str(root), strict=True)
    assert len(data.train) + len(data.held_out) == 10


def test_damaged_and_foreign_files_are_named_and_skipped(tmp_path: Path) -> None:
    fill(tmp_path, 12)
    whole = (tmp_path / "000.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "list.txt").write_text("not a picture")
    Image.fromarray(np.zeros((8, 8), np.float32)).save(tmp_path / "measured.tiff")
    data = load(str(tmp_path))
    assert len(data.train) + len(data.held_out) == 12
    assert data.notes[0] == (
        "skipped 4 of 16 files that are not readable images: cut.png (damaged), empty.jpg (not an image), "
        "list.txt (not an image), measured.tiff (floating point, whose range is unknown)"
    )
    for options in ({}, {"size": 8, "channels": 3}):
        with pytest.raises(
            BadData, match=r"of 16 files are not readable images: .*list.txt.*leave out strict"
        ):
            load(str(tmp_path), strict=True, **options)  # type: ignore[arg-type]


def test_five_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    for number in range(7):
        (tmp_path / f"{number}.txt").write_text("text")
    note = load(str(tmp_path), size=8, channels=1).notes[0]
    assert "skipped 7 of 10" in note
    assert "4.txt (not an image), ..." in note
    assert "5.txt" not in note


@pytest.mark.parametrize("options", [{}, {"size": 8, "channels": 3}])
def test_neither_workers_nor_memory_change_the_data(tmp_path: Path, options: dict[str, int]) -> None:
    fill(tmp_path, 25, size=(8, 8))
    (tmp_path / "007.png").write_bytes((tmp_path / "007.png").read_bytes()[:90])
    (tmp_path / "notes.txt").write_text("text")
    base = load(str(tmp_path), **options)  # type: ignore[arg-type]
    for workers, memory_bytes in ((1, 2 << 30), (5, 2 << 30), (1, 0), (2, 100), (5, 0)):
        other = load(str(tmp_path), workers=workers, memory_bytes=memory_bytes, **options)  # type: ignore[arg-type]
        assert torch.equal(every_image(base), every_image(other))
        assert base.notes == other.notes


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    data = load(str(fill(tmp_path, 4)), memory_bytes=0)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(BadData, match=r"00\d.png was readable at first and is not any more"):
        data.train.fetch(torch.tensor([0]))


def test_sub_folders_are_the_classes(tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "ant", "bee")):
        fill(tmp_path / name / "more", 4, size=(8, 8), mode="L" if number else "RGB")
    (tmp_path / "about").mkdir()
    (tmp_path / "about" / "readme.txt").write_text("no class")
    (tmp_path / "empty").mkdir()
    (tmp_path / "licence.txt").write_text("no class either")
    data = load(str(tmp_path), labels=True)
    assert data.train.classes == data.held_out.classes == 3
    assert "3 classes: ant, bee, cat" in data.notes
    assert data.class_names == ("ant", "bee", "cat")
    labels = [part.labels for part in (data.train, data.held_out)]
    assert torch.cat([part for part in labels if part is not None]).bincount().tolist() == [4, 4, 4]
    images, classes = data.train.fetch(torch.arange(11)), data.train.labels
    assert classes is not None
    coloured = (images[:, 0] != images[:, 2]).flatten(1).any(1)
    assert torch.equal(coloured, classes == 2), "only cats were stored in colour"


def test_files_without_a_class_are_refused(tmp_path: Path) -> None:
    fill(tmp_path / "ant", 3)
    fill(tmp_path, 7)
    with pytest.raises(BadData, match=r"7 of 10 do not: 000.png, .*004.png, \.\.\.\. Move them"):
        load(str(tmp_path), labels=True)
    assert len(load(str(tmp_path)).train) == 9


def test_empty_folders_and_folders_of_text_say_so(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden.png").write_bytes(b"")
    with pytest.raises(BadData, match="has no files in it or in its sub-folders"):
        load(str(tmp_path))
    for name in "abc":
        (tmp_path / "sub" / f"{name}.txt").write_text("text")
    for options in ({}, {"size": 8, "channels": 3}, {"labels": True}):
        with pytest.raises(
            BadData, match=r"3 files and none is a readable image: sub/a.txt \(not an image\), "
        ):
            load(str(tmp_path), **options)


def test_a_disk_that_fails_is_an_error_and_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 3)

    def fail(path: Path) -> Image.Image:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(BadData, match=r"000.png cannot be read \(Input/output error\): make it readable"):
        load(str(tmp_path))


def test_mirror_images_by_default_and_a_note_about_it(tmp_path: Path) -> None:
    data = load(str(fill(tmp_path, 4)))
    assert data.train.flips
    assert any("flips=false" in note for note in data.notes)
    data = load(str(tmp_path), flips=False)
    assert not data.train.flips
    assert not any("flips=false" in note for note in data.notes)

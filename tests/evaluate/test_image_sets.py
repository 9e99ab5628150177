"""Folders and arrays are the same images, and what is wrong with them is told by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from stepwell.data.source import BadData, InMemory
from stepwell.evaluate.image_sets import ArrayOfImages, FolderOfImages, SourceOfImages, chosen_rows


def pixels(count: int = 5, height: int = 6, width: int = 9) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def write_folder(root: Path, images: np.ndarray) -> Path:
    root.mkdir(exist_ok=True)
    for row, image in enumerate(images):
        Image.fromarray(image).save(root / f"{row:05d}.png")
    return root


def test_a_folder_an_array_and_a_source_hold_the_same_images(tmp_path: Path) -> None:
    images = pixels()
    expected = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    np.savez(tmp_path / "plain.npz", images=images)
    np.savez_compressed(tmp_path / "packed.npz", arr_0=images)
    np.savez(tmp_path / "first.npz", x=np.asfortranarray(images.transpose(0, 3, 1, 2)))
    for made in (
        FolderOfImages(write_folder(tmp_path / "folder", images)),
        ArrayOfImages(tmp_path / "plain.npz"),
        ArrayOfImages(tmp_path / "packed.npz"),
        ArrayOfImages(tmp_path / "first.npz"),
        SourceOfImages(InMemory(expected, name="tensor")),
    ):
        assert len(made) == 5
        assert torch.equal(made.fetch([3, 0, 4]), expected[[3, 0, 4]])
        assert made.digest() == made.digest()


def test_an_array_that_is_not_compressed_stays_on_disk(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", other=np.zeros(3), images=pixels(), last=np.ones(2))
    made = ArrayOfImages(tmp_path / "a.npz")
    assert isinstance(made._array, np.memmap)
    assert np.array_equal(made._array, pixels())


def test_digests_tell_contents_sizes_and_order_apart_and_nothing_else(tmp_path: Path) -> None:
    images = pixels()
    folder = write_folder(tmp_path / "a", images)
    same = write_folder(tmp_path / "b", images)
    turned = write_folder(tmp_path / "c", images[::-1])
    assert FolderOfImages(folder).digest() == FolderOfImages(same).digest()
    assert len({FolderOfImages(folder).digest(), FolderOfImages(turned).digest(),
                FolderOfImages(folder, size=4).digest()}) == 3  # fmt: skip


def test_mixed_sizes_name_two_files_and_an_explicit_size_helps(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", pixels())
    Image.new("RGB", (20, 10)).save(folder / "odd.png")
    with pytest.raises(BadData, match=r"00000.png is 9x6 and odd.png is 20x10.*--size N"):
        FolderOfImages(folder)
    assert FolderOfImages(folder, size=8).fetch([0, 5]).shape == (2, 3, 8, 8)


def test_a_picture_on_its_side_has_the_size_that_one_sees(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", pixels(2, 6, 9))
    turned = Image.new("RGB", (6, 9))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(folder / "turned.jpg", exif=exif)
    assert FolderOfImages(folder).fetch([0, 2]).shape == (2, 3, 6, 9)


def test_unreadable_files_are_skipped_and_named_as_in_training(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", pixels())
    (folder / "note.txt").write_text("not looked at")
    whole = (folder / "00002.png").read_bytes()
    (folder / "00002.png").write_bytes(whole[: len(whole) // 2])
    (folder / "00003.png").write_bytes(b"text")
    found = FolderOfImages(folder)
    assert len(found) == 3
    assert np.array_equal(found.fetch([2])[0].permute(1, 2, 0), pixels()[4])
    assert found.notes == (
        "skipped 2 of 5 files that are not readable images: 00002.png (damaged), 00003.png (not an image)",
    )
    for row in (0, 1, 4):
        (folder / f"0000{row}.png").write_bytes(b"text")
    with pytest.raises(BadData, match="has no image that can be read: skipped 5 of 5"):
        FolderOfImages(folder)


def test_bad_arrays_say_why(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for arrays, message in (
        ({"pictures": pixels()}, "no array called images, x or arr_0, only pictures"),
        ({"images": pixels() / 255}, "holds float64"),
        ({"images": pixels()[0, 0]}, "has shape"),
        ({"images": np.array([None, 1])}, "Python objects"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(BadData, match=message):
            ArrayOfImages(path)
    path.write_bytes(b"PK nothing")
    with pytest.raises(BadData, match=r"not an .npz file, or is cut off"):
        ArrayOfImages(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadData, match="no images"):
        FolderOfImages(tmp_path / "empty")


def test_chosen_rows_are_spread_over_the_set() -> None:
    assert chosen_rows(10, None) == chosen_rows(10, 10) == chosen_rows(10, 99) == list(range(10))
    assert chosen_rows(10, 5) == [0, 2, 4, 6, 8]
    many = chosen_rows(50_000, 7_777)
    assert len(set(many)) == 7_777
    assert many == sorted(many)

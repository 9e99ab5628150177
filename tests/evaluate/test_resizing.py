"""Each resizing is what its program does, on closed forms and against Pillow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from stepwell.core.errors import UnknownName
from stepwell.evaluate.extractors import RESIZINGS, inception_range, resized


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("size", [(32, 32), (64, 48), (350, 320), (299, 299)])
def test_clean_is_pillows_float_bicubic_clipped_and_not_rounded(size: tuple[int, int]) -> None:
    images = noise(1, 3, *size)
    found = resized(images, 299, "clean")[0].numpy()
    for channel in range(3):
        picture = Image.fromarray(images[0, channel].numpy().astype(np.float32))
        expected = np.asarray(picture.resize((299, 299), Image.Resampling.BICUBIC)).clip(0, 255)
        assert np.abs(found[channel] - expected).max() < 2e-4
    assert size == (299, 299) or np.abs(found - found.round()).max() > 0.1


def ramp(length: int) -> torch.Tensor:
    return torch.arange(length, dtype=torch.uint8).expand(1, 3, length, length)


def test_bilinear_of_a_ramp_is_where_each_program_looks() -> None:
    target = torch.arange(299, dtype=torch.float64)
    centres = ((target + 0.5) * 32 / 299 - 0.5).clamp(0, 31)
    corners = (target * 32 / 299).clamp(max=31)
    for how, place in (("legacy", centres), ("legacy-tf", corners)):
        found = resized(ramp(32), 299, how)[0, 0].double()
        torch.testing.assert_close(found, place.expand(299, 299), atol=2e-5, rtol=0)
        down = resized(ramp(32).transpose(2, 3), 299, how)[0, 0].double()
        torch.testing.assert_close(down.T, found, atol=2e-5, rtol=0)


def test_only_clean_sees_all_pixels_of_a_large_image() -> None:
    # A checkerboard is grey from afar; without antialiasing some of it stays black and white.
    board = (
        ((torch.arange(1196)[:, None] + torch.arange(1196)) % 2 * 255).to(torch.uint8).expand(1, 3, -1, -1)
    )
    assert float((resized(board, 299, "clean") - 127.5).abs()[..., 3:-3, 3:-3].max()) < 1
    assert float((resized(board, 299, "legacy-tf") - 127.5).abs().max()) > 100


@pytest.mark.parametrize("how", RESIZINGS)
def test_images_of_the_right_size_and_of_one_colour_stay(how: str) -> None:
    images = noise(2, 3, 299, 299)
    assert torch.equal(resized(images, 299, how), images.float())
    grey = torch.full((1, 3, 20, 30), 77, dtype=torch.uint8)
    torch.testing.assert_close(resized(grey, 299, how), torch.full((1, 3, 299, 299), 77.0))


def test_ranges_are_those_of_the_programs() -> None:
    ends = torch.tensor([0.0, 128.0, 255.0])
    assert inception_range(ends, "clean").tolist() == [-1, 0, 127 / 128]
    assert inception_range(ends, "legacy-tf").tolist() == [-1, 0, 127 / 128]
    torch.testing.assert_close(inception_range(ends, "legacy"), torch.tensor([-1.0, 1 / 255, 1.0]))


def test_an_unknown_resizing_is_named() -> None:
    with pytest.raises(UnknownName, match=r"'lagacy'.*legacy"):
        resized(noise(1, 3, 8, 8), 299, "lagacy")

"""The companion of an image: means of squares, enlarged, and nothing else."""

from __future__ import annotations

import pytest
import torch

from stepwell.core.errors import InvalidParameter
from stepwell.models.denoiser import Conditioning, downsampled, upsampled


def test_pixels_of_the_small_image_are_means_of_squares() -> None:
    x = torch.randn(3, 2, 12, 12, dtype=torch.float64)
    small = downsampled(x, 4)
    assert small.shape == (3, 2, 3, 3)
    assert float(small[1, 0, 2, 1]) == pytest.approx(float(x[1, 0, 8:12, 4:8].mean()))


def test_a_plane_comes_back_as_it_was_inside() -> None:
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    plane = (2 * rows - columns)[None, None]
    again = upsampled(downsampled(plane, 4), 4)
    torch.testing.assert_close(again[..., 2:-2, 2:-2], plane[..., 2:-2, 2:-2])


def test_mirroring_and_reducing_change_places() -> None:
    x, told = torch.randn(2, 3, 8, 8), Conditioning(2)
    torch.testing.assert_close(told.of(x.flip(-1), None).channels, told.of(x, None).channels.flip(-1))


def test_without_a_factor_there_is_no_companion() -> None:
    labels = torch.tensor([1, 2])
    condition = Conditioning().of(torch.zeros(2, 1, 4, 4), labels)
    assert condition.channels is None
    assert condition.labels is labels
    assert Conditioning().extra_channels((3, 7, 7)) == 0
    assert Conditioning(4).extra_channels((3, 8, 8)) == 3


def test_a_factor_that_does_not_divide_the_size_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="super_resolution=3 cannot reduce images of 16x16"):
        Conditioning(3).extra_channels((1, 16, 16))
    with pytest.raises(InvalidParameter):
        Conditioning(-1)

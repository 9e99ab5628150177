"""Super-resolution: low-resolution images that a network enlarges, and how results look beside them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from stepwell.core.digest import weights_digest
from stepwell.data.source import ExampleSource, to_pixels, to_unit
from stepwell.generate.sheets import sheet
from stepwell.models.denoiser import downsampled, upsampled


class LowResolution(ABC):
    """What is enlarged: image i is made from low-resolution image i, in turn."""

    factor: int
    """How many times larger, in height and width, the generated images are."""

    @abstractmethod
    def low(self, indices: Sequence[int]) -> Tensor:
        """Low-resolution images, [B, C, h, w] in [-1, 1]."""

    @abstractmethod
    def columns(self, images: Tensor) -> dict[str, Tensor]:
        """What a sheet shows beside the input, by title: `images` and others, uint8 [N, C, H, W] each."""

    def channels(self, indices: Sequence[int]) -> Tensor:
        """The network's extra input: low-resolution images, enlarged, [B, C, H, W]."""
        return upsampled(self.low(indices), self.factor)

    def bilinear(self, indices: Sequence[int]) -> Tensor:
        """The baseline without a network, bilinear interpolation, as uint8 [B, C, H, W]."""
        return to_pixels(self.channels(indices))

    def sheet(self, images: Tensor) -> Image.Image:
        """Generated images, uint8 [N, C, H, W], each in a row with its input."""
        low = to_pixels(self.low(range(len(images))))
        blocks = low.repeat_interleave(self.factor, 2).repeat_interleave(self.factor, 3)
        shown = {"input": blocks, **self.columns(images)}
        groups = math.ceil(math.sqrt(len(images) / len(shown)))
        cells = torch.stack(list(shown.values()), dim=1).flatten(0, 1)
        return sheet(cells, len(shown) * groups, titles=[*shown] * groups)


@dataclass(frozen=True)
class ReducedImages(LowResolution):
    """Images of the data, reduced: the ground truth is known."""

    source: ExampleSource
    factor: int

    def __str__(self) -> str:
        return f"{self.source.name}, {len(self.source)} images reduced by {self.factor}"

    def low(self, indices: Sequence[int]) -> Tensor:
        return downsampled(self._examples(indices), self.factor)

    def original(self, indices: Sequence[int]) -> Tensor:
        """The ground truth as uint8 [B, C, H, W]."""
        return to_pixels(self._examples(indices))

    def columns(self, images: Tensor) -> dict[str, Tensor]:
        return {"generated": images, "original": self.original(range(len(images)))}

    def _examples(self, indices: Sequence[int]) -> Tensor:
        return self.source.examples(torch.tensor(indices) % len(self.source))


@dataclass(frozen=True, eq=False)
class OwnImages(LowResolution):
    """Images of the user, as small as the network takes them: `pixels` uint8 [N, C, h, w]."""

    pixels: Tensor
    factor: int

    def __str__(self) -> str:
        return f"{len(self.pixels)} images, digest {weights_digest({'pixels': self.pixels})}"

    def low(self, indices: Sequence[int]) -> Tensor:
        return to_unit(self.pixels[torch.tensor(indices) % len(self.pixels)])

    def columns(self, images: Tensor) -> dict[str, Tensor]:
        return {"bilinear": self.bilinear(range(len(images))), "generated": images}


def sample_sheet(images: Tensor, low_resolution: LowResolution | None) -> Image.Image:
    """All images side by side; those of super-resolution beside what they are made from."""
    return sheet(images) if low_resolution is None else low_resolution.sheet(images)

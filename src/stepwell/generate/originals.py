"""Images to enlarge: their low-resolution companions are given to the network, they are what is hoped for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from stepwell.data.source import ExampleSource, to_pixels
from stepwell.generate.grid import sheet
from stepwell.models.low_resolution import Conditioning, enlarged, reduced


@dataclass(frozen=True)
class Originals:
    """Image i is made from the companion of row i of the source, in turn."""

    source: ExampleSource
    conditioning: Conditioning

    def __str__(self) -> str:
        factor = self.conditioning.super_resolution
        return f"{self.source.name}, {len(self.source)} images reduced by {factor}"

    def examples(self, indices: Sequence[int]) -> Tensor:
        """The images themselves, [B, C, H, W] in [-1, 1]."""
        return self.source.examples(torch.tensor(indices) % len(self.source))

    def channels(self, indices: Sequence[int]) -> Tensor | None:
        """What the network is shown beside the noise, [B, C, H, W]."""
        return self.conditioning.channels(self.examples(indices))

    def pixels(self, indices: Sequence[int]) -> Tensor:
        """The images themselves, as uint8 [B, C, H, W]."""
        return to_pixels(self.examples(indices))

    def plainly_enlarged(self, indices: Sequence[int]) -> Tensor:
        """What bilinear interpolation makes of their companions, as uint8 [B, C, H, W]."""
        factor = self.conditioning.super_resolution
        return to_pixels(enlarged(reduced(self.examples(indices), factor), factor))

    def triples(self, images: Tensor) -> Image.Image:
        """A sheet: low-resolution image, generated one (uint8 [N, C, H, W], from number 0 on), original."""
        factor, indices = self.conditioning.super_resolution, range(len(images))
        low = to_pixels(reduced(self.examples(indices), factor))
        blocks = low.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
        shown = torch.stack([blocks, images, self.pixels(indices)], dim=1).flatten(0, 1)
        columns = 3 * math.ceil(math.sqrt(len(images) / 3))
        return sheet(shown, columns, scale=max(1, 64 // images.shape[-1]))

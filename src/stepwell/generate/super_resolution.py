"""Images as pictures: one, or a sheet of many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from stepwell.data.source import ExampleSource, to_pixels
from stepwell.models.denoiser import Conditioning, downsampled, upsampled


def sheet(images: Tensor, columns: int | None = None, gap: int = 1, scale: int = 1) -> Image.Image:
    """uint8 images [N, C, H, W] side by side on a dark sheet."""
    count, channels, height, width = images.shape
    across = columns or math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    canvas = torch.full(
        (channels, down * (height + gap) - gap, across * (width + gap) - gap), 32, dtype=torch.uint8
    )
    for index, image in enumerate(images):
        top, left = (index // across) * (height + gap), (index % across) * (width + gap)
        canvas[:, top : top + height, left : left + width] = image
    picture = as_picture(canvas)
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)


def as_picture(image: Tensor) -> Image.Image:
    """One uint8 image [C, H, W] with one or three channels."""
    array = image.permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array[:, :, :3])


@dataclass(frozen=True)
class GroundTruth:
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

    def bilinear(self, indices: Sequence[int]) -> Tensor:
        """What bilinear interpolation makes of their companions, as uint8 [B, C, H, W]."""
        factor = self.conditioning.super_resolution
        return to_pixels(upsampled(downsampled(self.examples(indices), factor), factor))

    def triples(self, images: Tensor) -> Image.Image:
        """A sheet: low-resolution image, generated one (uint8 [N, C, H, W], from number 0 on), original."""
        factor, indices = self.conditioning.super_resolution, range(len(images))
        low = to_pixels(downsampled(self.examples(indices), factor))
        blocks = low.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
        shown = torch.stack([blocks, images, self.pixels(indices)], dim=1).flatten(0, 1)
        columns = 3 * math.ceil(math.sqrt(len(images) / 3))
        return sheet(shown, columns, scale=max(1, 64 // images.shape[-1]))

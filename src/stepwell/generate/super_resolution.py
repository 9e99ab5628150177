"""Super-resolution: the images that are reduced and enlarged again, and how results look beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from stepwell.data.source import ExampleSource, to_pixels
from stepwell.generate.sheets import sheet
from stepwell.models.denoiser import Conditioning, downsampled, upsampled


@dataclass(frozen=True)
class GroundTruth:
    """The source of super-resolution: image i is made from the low-resolution version of row i, in turn."""

    source: ExampleSource
    conditioning: Conditioning

    def __str__(self) -> str:
        return f"{self.source.name}, {len(self.source)} images reduced by {self.factor}"

    @property
    def factor(self) -> int:
        """How many times smaller, in height and width, the low-resolution images are."""
        return self.conditioning.super_resolution

    def examples(self, indices: Sequence[int]) -> Tensor:
        """The ground truth, [B, C, H, W] in [-1, 1]."""
        return self.source.examples(torch.tensor(indices) % len(self.source))

    def channels(self, indices: Sequence[int]) -> Tensor:
        """The network's extra input: low-resolution images, enlarged again, [B, C, H, W]."""
        return upsampled(downsampled(self.examples(indices), self.factor), self.factor)

    def pixels(self, indices: Sequence[int]) -> Tensor:
        """The ground truth as uint8 [B, C, H, W]."""
        return to_pixels(self.examples(indices))

    def bilinear(self, indices: Sequence[int]) -> Tensor:
        """The baseline without a network, bilinear interpolation, as uint8 [B, C, H, W]."""
        return to_pixels(self.channels(indices))

    def triples(self, images: Tensor) -> Image.Image:
        """A sheet of low-resolution image, generated image (uint8 [N, C, H, W]) and ground truth in turn."""
        indices = range(len(images))
        low = to_pixels(downsampled(self.examples(indices), self.factor))
        blocks = low.repeat_interleave(self.factor, 2).repeat_interleave(self.factor, 3)
        shown = torch.stack([blocks, images, self.pixels(indices)], dim=1).flatten(0, 1)
        columns = 3 * math.ceil(math.sqrt(len(images) / 3))
        return sheet(shown, columns)


def sample_sheet(images: Tensor, ground_truth: GroundTruth | None) -> Image.Image:
    """All images side by side; those of super-resolution between their input and the ground truth."""
    return sheet(images) if ground_truth is None else ground_truth.triples(images)

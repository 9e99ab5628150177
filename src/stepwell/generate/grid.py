"""Images as pictures: one, or a sheet of many."""

from __future__ import annotations

import math

import torch
from PIL import Image
from torch import Tensor


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

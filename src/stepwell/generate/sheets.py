"""Images as pictures: one, or a sheet of many."""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def sheet(images: Tensor, columns: int | None = None) -> Image.Image:
    """uint8 images [N, C, H, W] side by side on a dark sheet, small ones enlarged."""
    count, channels, height, width = images.shape
    across = columns or math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    # A line of one pixel between images.
    canvas = torch.full((channels, down * (height + 1) - 1, across * (width + 1) - 1), 32, dtype=torch.uint8)
    for index, image in enumerate(images):
        top, left = (index // across) * (height + 1), (index % across) * (width + 1)
        canvas[:, top : top + height, left : left + width] = image
    picture, scale = as_picture(canvas), max(1, 64 // width)
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)


def as_picture(image: Tensor) -> Image.Image:
    """One uint8 image [C, H, W] with one or three channels."""
    array = image.permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array[:, :, :3])


def as_tensor(picture: Image.Image) -> Tensor:
    """A picture as uint8 [3, H, W]."""
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)

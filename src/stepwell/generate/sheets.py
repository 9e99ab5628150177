"""Images as pictures: one, or a sheet of many."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

_TITLE_HEIGHT = 16


def sheet(images: Tensor, columns: int | None = None, titles: Sequence[str] = ()) -> Image.Image:
    """uint8 images [N, C, H, W] side by side on a dark sheet, small ones enlarged, with titles of columns."""
    count, channels, height, width = images.shape
    across = columns or math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    # A line of one pixel between images.
    canvas = torch.full((channels, down * (height + 1) - 1, across * (width + 1) - 1), 32, dtype=torch.uint8)
    for index, image in enumerate(images):
        top, left = (index // across) * (height + 1), (index % across) * (width + 1)
        canvas[:, top : top + height, left : left + width] = image
    picture, scale = as_picture(canvas), max(1, 64 // width)
    picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    return _titled(picture, titles, (width + 1) * scale) if titles else picture


def _titled(picture: Image.Image, titles: Sequence[str], column: int) -> Image.Image:
    """A picture below a line with the titles of its columns, each so many pixels wide."""
    titled = Image.new("RGB", (picture.width, picture.height + _TITLE_HEIGHT), (32, 32, 32))
    titled.paste(picture, (0, _TITLE_HEIGHT))
    draw, font = ImageDraw.Draw(titled), ImageFont.load_default(11)
    for number, title in enumerate(titles):
        place = (number * column + column / 2, _TITLE_HEIGHT / 2)
        draw.text(place, title, fill=(230, 230, 230), font=font, anchor="mm")
    return titled


def as_picture(image: Tensor) -> Image.Image:
    """One uint8 image [C, H, W] with one or three channels."""
    array = image.permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array[:, :, :3])


def as_tensor(picture: Image.Image) -> Tensor:
    """A picture as uint8 [3, H, W]."""
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)

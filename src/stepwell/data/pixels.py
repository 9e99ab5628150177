"""Any picture that Pillow reads as uint8 pixels of one size and mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from stepwell.data.source import BadData

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels: TypeAlias = NDArray[np.uint8]

_DEEP_GREY = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_GREY = ("1", "L", "LA", "La", "F", *_DEEP_GREY)
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")


def is_grey(mode: str) -> bool:
    """Whether pictures of this Pillow mode have no colour."""
    return mode in _GREY


def as_pixels(picture: Image.Image, size: int | None, channels: int) -> Pixels:
    """A picture upright, flattened and fitted, as [C, H, W]; `size` None keeps its height and width."""
    flat = _flat(ImageOps.exif_transpose(picture)).convert("L" if channels == 1 else "RGB")
    if size is not None:
        flat = ImageOps.fit(flat, (size, size), Image.Resampling.LANCZOS)
    rows = np.array(flat)
    return np.ascontiguousarray(rows[None] if rows.ndim == 2 else rows.transpose(2, 0, 1))


def _flat(picture: Image.Image) -> Image.Image:
    """Eight bits a channel and no alpha."""
    if picture.mode in _DEEP_GREY:
        return _eight_bits(picture)
    if picture.mode == "F":
        raise BadData("floating point, whose range is anybody's guess")
    if picture.mode in _ALPHA or "transparency" in picture.info:
        # Pillow's own conversion would show the colours that hide behind transparent pixels.
        above = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    return picture


def _eight_bits(picture: Image.Image) -> Image.Image:
    """65535 as 255; Pillow's own conversion clips at 255, which turns 16-bit pictures white."""
    deep = np.asarray(picture).astype(np.int64)
    if deep.min() < 0 or deep.max() > 65535:
        raise BadData("more than 16 bits a channel")
    return Image.fromarray(((deep * 255 + 32767) // 65535).astype(np.uint8))


def refit(pixels: Tensor, size: int | None, channels: int | None) -> Tensor:
    """Images [N, C, H, W] at the size and channels asked for, as a folder of them would be read."""
    count, given, height, width = pixels.shape
    wanted = given if channels is None else channels
    if wanted == given and size in (None, height) and size in (None, width):
        return pixels
    first = (wanted, size or height, size or width)
    fitted = torch.empty((count, *first), dtype=torch.uint8)
    for row, image in enumerate(pixels.permute(0, 2, 3, 1).numpy()):
        picture = Image.fromarray(np.ascontiguousarray(image[..., 0] if given == 1 else image))
        fitted[row] = torch.from_numpy(as_pixels(picture, size, wanted))
    return fitted

"""Images at the size and in the range that a feature network expects, as three published programs do it.

`clean` is clean-fid's (Parmar et al. 2022): bicubic with antialiasing, per channel, never rounded to pixels.
`legacy` is pytorch-fid's: bilinear between pixel centres without antialiasing; most papers since 2020.
`legacy-tf` is the original's (Heusel et al. 2017), kept by torch-fidelity and guided-diffusion's evaluator:
TensorFlow 1's bilinear, which has no half-pixel offset. The three give different numbers for the same images,
so statistics that somebody else computed must be met with the resizing that they used.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from stepwell.core import require


def clean(images: Tensor, size: int) -> Tensor:
    """Antialiased bicubic in float, as Pillow's mode F; float64, since torch's float32 is off by 1e-5."""
    fitted = F.interpolate(images.double(), (size, size), mode="bicubic", antialias=True, align_corners=False)
    return fitted.clamp_(0, 255).float()


def legacy(images: Tensor, size: int) -> Tensor:
    """Bilinear between pixel centres: too coarse a comb where images shrink, hence the name."""
    return F.interpolate(images.float(), (size, size), mode="bilinear", align_corners=False)


def legacy_tf(images: Tensor, size: int) -> Tensor:
    """TensorFlow 1's bilinear: pixel i of the result is at i * height / size, so images shift."""
    return _blended(_blended(images.float(), size, 2), size, 3)


def _blended(images: Tensor, size: int, dimension: int) -> Tensor:
    given = images.shape[dimension]
    place = torch.arange(size, dtype=torch.float32, device=images.device) * (given / size)
    first = place.floor().long()
    share = (place - first).reshape([-1 if axis == dimension else 1 for axis in range(4)])
    low = images.index_select(dimension, first)
    high = images.index_select(dimension, (first + 1).clamp(max=given - 1))
    return low + (high - low) * share


RESIZINGS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "clean": clean,
    "legacy": legacy,
    "legacy-tf": legacy_tf,
}


def resized(images: Tensor, size: int, how: str) -> Tensor:
    """uint8 images [B, C, H, W] as floats [B, C, size, size] from 0 to 255."""
    require.one_of("resizing", how, list(RESIZINGS))
    if tuple(images.shape[2:]) == (size, size):
        return images.float()
    return RESIZINGS[how](images, size)


def inception_range(images: Tensor, how: str) -> Tensor:
    """0 to 255 as each program scales it: pytorch-fid to [-1, 1], the others by (x - 128) / 128."""
    return images / 127.5 - 1 if how == "legacy" else (images - 128) / 128

"""Super-resolution: the low-resolution image as extra input channels (Saharia et al. 2021, SR3).

The companion is a function of the image alone, so nothing is stored, and the companion of a mirror image is
the mirror image of the companion.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.shapes import PerExample
from stepwell.models.denoiser import Condition


def reduced(images: Tensor, factor: int) -> Tensor:
    """Images [B, C, H, W] averaged over squares of `factor` pixels: [B, C, H / factor, W / factor]."""
    return F.avg_pool2d(images, factor)


def enlarged(low: Tensor, factor: int) -> Tensor:
    """Small images [B, C, h, w] at `factor` times their size, bilinear: what needs no network."""
    return F.interpolate(low, scale_factor=factor, mode="bilinear", align_corners=False)


@dataclass(frozen=True)
class Conditioning:
    """What the network is told of its examples beside time."""

    super_resolution: int = 0
    """The factor by which images are reduced; 0: the network is shown no low-resolution image."""

    def __post_init__(self) -> None:
        require.count("super_resolution", self.super_resolution, least=0)

    def extra_channels(self, shape: tuple[int, int, int]) -> int:
        """How many input channels it adds for examples of a shape; the factor has to divide their size."""
        factor = self.super_resolution
        if factor == 0:
            return 0
        channels, height, width = shape
        if height % factor or width % factor:
            raise InvalidParameter(
                f"super_resolution={factor} cannot reduce images of {height}x{width}: give a factor that "
                "divides their size, or another size."
            )
        return channels

    def of(self, x0: Tensor, labels: PerExample | None) -> Condition:
        """The condition of examples x0 [B, C, H, W] with labels [B]."""
        return Condition(labels, self.channels(x0))

    def channels(self, x0: Tensor) -> Tensor | None:
        """The companions [B, C, H, W] of examples x0 [B, C, H, W]."""
        factor = self.super_resolution
        return enlarged(reduced(x0, factor), factor) if factor else None


UNTOLD = Conditioning()
"""Nothing but labels."""

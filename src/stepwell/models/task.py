"""What a network is built for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter


@dataclass(frozen=True)
class Task:
    """Shapes in and out, labels, and dropout: all that a family needs beside a size."""

    channels: int
    image_size: int
    classes: int = 0
    """0: no labels. Otherwise one label more is embedded, `classes`: that of no class, for guidance."""
    extra_channels: int = 0
    learned_variance: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require.count("channels", self.channels)
        require.count("image_size", self.image_size)
        require.count("classes", self.classes, least=0)
        require.count("extra_channels", self.extra_channels, least=0)
        require.between("dropout", self.dropout, 0, 1)

    @property
    def channels_in(self) -> int:
        """Channels that the network sees."""
        return self.channels + self.extra_channels

    @property
    def channels_out(self) -> int:
        """Channels that it answers: twice as many with a learned variance."""
        return self.channels * (2 if self.learned_variance else 1)

    def check(self, name: str, images: Tensor) -> None:
        """Refuse images [B, C, H, W] of another shape: a transformer's positions belong to one size."""
        wanted = (self.channels_in, self.image_size, self.image_size)
        if images.dim() != 4 or images.shape[1:] != wanted:
            raise InvalidParameter(
                f"model {name} was built for images of shape {wanted}, not {tuple(images.shape[1:])}. "
                "Resize the data (size=...) or build the model for theirs."
            )


def patches_across(name: str, image_size: int, patch: int) -> int:
    """How many patches make a row of the image, or an error that says which sizes fit."""
    if image_size % patch:
        raise InvalidParameter(
            f"model {name} cuts images into patches of {patch}x{patch}: their size must be a multiple of "
            f"{patch}, not {image_size}. Resize the data (size=...) or take a U-Net."
        )
    return image_size // patch

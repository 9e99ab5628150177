"""The wrapper around every network: what it is built for, what conditions it, and how it is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.tensors import PerExample


class TextShape(NamedTuple):
    """The shape of one embedded text."""

    tokens: int
    width: int


@dataclass(frozen=True)
class NetworkSpec:
    """What a network is built for: its inputs and outputs, labels and dropout."""

    channels: int
    image_size: int
    classes: int = 0
    """0: no labels. Otherwise one more label is embedded, number `classes`: no class, for guidance."""
    extra_channels: int = 0
    learned_variance: bool = False
    dropout: float = 0.0
    text: TextShape | None = None
    """With texts, labels are numbers of texts, and `classes` is the number of the empty one."""

    def __post_init__(self) -> None:
        require.count("channels", self.channels)
        require.count("image_size", self.image_size)
        require.count("classes", self.classes, least=0)
        require.count("extra_channels", self.extra_channels, least=0)
        require.between("dropout", self.dropout, 0, 1)

    @property
    def channels_in(self) -> int:
        """Channels of the input."""
        return self.channels + self.extra_channels

    @property
    def channels_out(self) -> int:
        """Channels of the output: twice as many with a learned variance."""
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
    """How many patches make a row of the image, or an error that names the sizes that fit."""
    if image_size % patch:
        raise InvalidParameter(
            f"model {name} cuts images into patches of {patch}x{patch}: their size must be a multiple of "
            f"{patch}, not {image_size}. Resize the data (size=...) or take a U-Net."
        )
    return image_size // patch


@dataclass(frozen=True)
class Condition:
    """What the network is conditioned on beside time."""

    labels: PerExample | None = None
    """[B] int64; `classes` is the label of no class, for guidance."""
    channels: Tensor | None = None
    """[B, E, H, W]: extra input, such as a low-resolution image."""


class NetworkOutput(NamedTuple):
    """A network's output, under diffusers' name."""

    sample: Tensor
    """[B, C, H, W]"""


class Denoiser(nn.Module):
    """A network (sample, timestep, class_labels) -> .sample, called as the objective calls it."""

    def __init__(
        self, network: Any, classes: int = 0, label_dropout: float = 0.0, learned_variance: bool = False
    ) -> None:
        super().__init__()
        self.network, self.classes, self.label_dropout = network, classes, label_dropout
        self.learned_variance = learned_variance

    def forward(self, x: Tensor, time: PerExample, condition: Condition | None = None) -> Tensor:
        """The network's output [B, C, H, W], or [B, 2 C, H, W] with a learned variance."""
        labels, channels = (condition.labels, condition.channels) if condition else (None, None)
        extended = x if channels is None else torch.cat([x, channels.to(x.dtype)], dim=1)
        output: Tensor = self.network(extended, time, class_labels=self._labels(labels, x)).sample
        return output

    def _labels(self, labels: PerExample | None, x: Tensor) -> PerExample | None:
        """The network's labels: that of no class where there are none, or where dropout hides them."""
        if self.classes == 0:
            return None
        if labels is None:
            return torch.full((len(x),), self.classes, device=x.device)
        if labels.shape != (len(x),):
            raise InvalidParameter(
                f"{len(x)} examples need {len(x)} labels, not shape {tuple(labels.shape)}."
            )
        if not (self.training and self.label_dropout):
            return labels
        dropped = torch.rand(len(x), device=x.device) < self.label_dropout
        return torch.where(dropped, self.classes, labels)


def downsampled(images: Tensor, factor: int) -> Tensor:
    """Images [B, C, H, W] averaged over squares of `factor` pixels: [B, C, H / factor, W / factor]."""
    return F.avg_pool2d(images, factor)


def upsampled(low: Tensor, factor: int) -> Tensor:
    """Small images [B, C, h, w] at `factor` times their size, by bilinear interpolation."""
    return F.interpolate(low, scale_factor=factor, mode="bilinear", align_corners=False)


@dataclass(frozen=True)
class Conditioning:
    """How a condition is made from examples: their labels and, for super-resolution, a smaller version."""

    super_resolution: int = 0
    """The factor by which images are reduced; 0: there is no low-resolution image."""

    def __post_init__(self) -> None:
        require.count("super_resolution", self.super_resolution, least=0)

    def extra_channels(self, shape: tuple[int, int, int]) -> int:
        """How many input channels it adds for examples of a shape, whose size the factor must divide."""
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
        """The low-resolution versions of examples x0 [B, C, H, W], enlarged to [B, C, H, W] again."""
        factor = self.super_resolution
        return upsampled(downsampled(x0, factor), factor) if factor else None


LABELS_ONLY = Conditioning()

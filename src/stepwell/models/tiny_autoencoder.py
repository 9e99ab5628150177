"""The TAESD family (madebyollin/taesd, MIT): small convolutional autoencoders of large models' latents."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

_STAGES = 3
"""Halvings of the image: 8 pixels are one latent."""
_BLOCKS = 3
_GROUPS = 4


class SoftClamp(nn.Module):
    """Latents kept within 3, as the decoder was trained."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x / 3) * 3


class Block(nn.Module):
    """Three convolutions around a skip; TAEF2's middle blocks first add normalised features of the stage."""

    def __init__(self, width: int, pooled: bool = False) -> None:
        super().__init__()
        self.pool = _normalised(width) if pooled else None
        self.conv = nn.Sequential(
            _conv(width, width), nn.ReLU(), _conv(width, width), nn.ReLU(), _conv(width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.pool is not None:
            x = x + self.pool(x)
        return torch.relu(self.conv(x) + x)


class TinyAutoencoder(nn.Module):
    """Images [B, 3, H, W] in [-1, 1] to latents [B, c, H / 8, W / 8] and back; no posterior."""

    factor = 2**_STAGES

    def __init__(self, channels: int, width: int = 64, pooled: bool = False) -> None:
        super().__init__()
        self.channels = channels
        down: list[nn.Module] = [_conv(3, width), Block(width)]
        up: list[nn.Module] = [SoftClamp(), _conv(channels, width), nn.ReLU()]
        for stage in range(_STAGES):
            deepest = stage == _STAGES - 1
            down += [nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False)]
            down += [Block(width, pooled and deepest) for _ in range(_BLOCKS)]
            up += [Block(width, pooled and stage == 0) for _ in range(_BLOCKS)]
            up += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1, bias=False)]
        self.encoder = nn.Sequential(*down, _conv(width, channels))
        self.decoder = nn.Sequential(*up, Block(width), _conv(width, 3))

    def encode(self, images: Tensor) -> Tensor:
        """Images in [-1, 1] as latents; the published networks take [0, 1]."""
        latents: Tensor = self.encoder(images.add(1).div(2))
        return latents

    def decode(self, latents: Tensor) -> Tensor:
        """Latents as images, around [-1, 1]."""
        images: Tensor = self.decoder(latents)
        return images.mul(2).sub(1)


def from_weights(encoder: Mapping[str, Tensor], decoder: Mapping[str, Tensor]) -> TinyAutoencoder:
    """The network these two files belong to, in float32; KeyError or RuntimeError if there is none."""
    width = encoder["0.weight"].shape[0]
    channels = decoder["1.weight"].shape[1]
    pooled = any(".pool." in name for name in encoder)
    network = TinyAutoencoder(channels, width, pooled)
    network.encoder.load_state_dict(dict(encoder))
    network.decoder.load_state_dict(dict(decoder))
    return network


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def _normalised(width: int) -> nn.Sequential:
    wide = width * 4
    return nn.Sequential(
        nn.Conv2d(width, wide, 1, bias=False),
        nn.GroupNorm(_GROUPS, wide),
        nn.ReLU(),
        nn.Conv2d(wide, width, 1, bias=False),
    )

"""The policy network of Kim et al. (2025): from x0 to the two shapes of a Beta density."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core.random import stream_key, uniforms

LARGEST = 32
"""Examples are averaged down to this size: the published network is made for it."""
_SIDE, _CHANNELS, _DEPTH = 4, (32, 64, 128), 2
FIRST_OUTPUT, SMALLEST_SHAPE = 0.5, 1e-5
"""Of the official code: a = b = softplus(0.5) + 1e-5 = 0.974087 at first."""

_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MAXIMUM: tuple[Callable[..., Tensor], ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVERAGE: tuple[Callable[..., Tensor], ...] = (
    F.adaptive_avg_pool1d,
    F.adaptive_avg_pool2d,
    F.adaptive_avg_pool3d,
)


def prepared(x0: Tensor) -> Tensor:
    """Examples as the policy sees them, in float32: [B, D], or [B, C, ...] with 1 to 3 sides up to 32."""
    x = x0.detach().to(torch.float32)
    if x.dim() <= 2:
        return x.reshape(len(x), -1)
    x = x.flatten(4) if x.dim() > 5 else x
    sides = [min(side, LARGEST) for side in x.shape[2:]]
    return x if sides == list(x.shape[2:]) else _AVERAGE[len(sides) - 1](x, sides)


class PolicyNetwork(nn.Module):
    """Three convolutions with pooling and an MLP (the official code's network), for any kind of example.

    Vectors have no convolutions. What these leave is filled up to 4 per side, as 32 pixels give it, so that
    all sizes of images share one network. Weights start from a fixed stream, the same on every rank and device.
    """

    def __init__(self, channels: int, sides: int, hidden: int, device: torch.device) -> None:
        super().__init__()
        convolutions, width = [], channels
        for out in _CHANNELS if sides else ():
            layer = nn.utils.skip_init(_CONVOLUTION[sides - 1], width, out, 3, padding=1, device=device)
            convolutions.append(layer)
            width = out
        widths = [width * _SIDE**sides, *[hidden] * _DEPTH, 2]
        self.convolutions = nn.ModuleList(convolutions)
        self.linear = nn.ModuleList(
            nn.utils.skip_init(nn.Linear, one, other, device=device) for one, other in pairwise(widths)
        )
        self._sides = sides
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        layers: list[nn.Module] = [*self.convolutions, *self.linear]
        for number, layer in enumerate(layers):
            weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
            if layer is layers[-1]:
                weight.zero_()
                bias.fill_(FIRST_OUTPUT)
                continue
            for name, values in (("weight", weight), ("bias", bias)):
                chance = uniforms(stream_key("policy", number, name), values.numel(), values.device)
                values.copy_((2 * chance - 1).view_as(values) / math.sqrt(weight[0].numel()))

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs [B, 2] for prepared examples."""
        for convolution in self.convolutions:
            x = torch.relu(convolution(x))
            halves = [min(2, side) for side in x.shape[2:]]
            x = _MAXIMUM[self._sides - 1](x, halves)
        # Sides of less than 32 leave less than 4. F.pad begins with the last of them.
        missing = [(0, _SIDE - side) for side in reversed(x.shape[2:])]
        x = F.pad(x, [count for side in missing for count in side]).flatten(1)
        for number, linear in enumerate(self.linear):
            x = linear(torch.relu(x) if number else x)
        return x


class SamePolicy(nn.Module):
    """Two numbers: the same density for every example."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.full((2,), FIRST_OUTPUT, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs [B, 2] for prepared examples."""
        return self.outputs.expand(len(x), 2)

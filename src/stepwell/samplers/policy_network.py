"""The policy network of Kim et al. (2025): from x0 to the two shapes of a Beta density."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core.random import stream_key, uniforms

LARGEST = 32
"""The side of an image that the published network is made for."""
_SIDE, _CHANNELS, _DEPTH = 4, (32, 64, 128), 2
FIRST_OUTPUT, SMALLEST_SHAPE = 0.5, 1e-5
"""Of the official code: a = b = softplus(0.5) + 1e-5 = 0.974087 at first."""

_Operation = Callable[..., Tensor]
_CONVOLUTION: tuple[_Operation, ...] = (F.conv1d, F.conv2d, F.conv3d)
_MAXIMUM: tuple[_Operation, ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVERAGE: tuple[_Operation, ...] = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)


def prepared(x0: Tensor, largest: int = LARGEST) -> Tensor:
    """Examples as a policy sees them: [B, D], or [B, C, ...] with 1 to 3 sides, averaged to `largest`."""
    x = x0.detach().to(torch.float32)
    if x.dim() <= 2:
        return x.reshape(len(x), -1)
    x = x.flatten(4) if x.dim() > 5 else x
    sides = [min(side, largest) for side in x.shape[2:]]
    return x if sides == list(x.shape[2:]) else _AVERAGE[len(sides) - 1](x, sides)


class _Layer(nn.Module):
    """A weight and a bias, uniform within 1 / sqrt(fan in), as torch's layers start.

    Not torch's layers: these would draw from the global generator.
    """

    def __init__(
        self, operation: _Operation, shape: tuple[int, ...], name: str, device: torch.device
    ) -> None:
        super().__init__()
        self._operation = operation
        bound = 1 / math.sqrt(math.prod(shape[1:]))

        def start(part: str, shape: tuple[int, ...]) -> nn.Parameter:
            chance = uniforms(stream_key("policy", name, part), math.prod(shape), device)
            return nn.Parameter(((2 * chance - 1) * bound).view(shape))

        self.weight, self.bias = start("weight", shape), start("bias", shape[:1])

    def forward(self, x: Tensor) -> Tensor:
        """[B, out, ...] for [B, in, ...]."""
        return self._operation(x, self.weight, self.bias)


class PolicyNetwork(nn.Module):
    """Three convolutions with pooling and an MLP (the official code's network), for any kind of example.

    Vectors have no convolutions. What these leave is filled up to 4 per side, as 32 pixels give it, so that
    all sizes of images share one network. Weights start from a fixed stream, alike on all ranks and devices.
    """

    def __init__(self, channels: int, sides: int, hidden: int, device: torch.device) -> None:
        super().__init__()
        self._sides = sides
        widths = [channels, *_CHANNELS] if sides else [channels]
        self.convolutions = nn.ModuleList(
            _Layer(_convolution(sides), (out, width, *[3] * sides), f"convolution {number}", device)
            for number, (width, out) in enumerate(pairwise(widths))
        )
        widths = [widths[-1] * _SIDE**sides, *[hidden] * _DEPTH, 2]
        self.linear = nn.ModuleList(
            _Layer(F.linear, (out, width), f"linear {number}", device)
            for number, (width, out) in enumerate(pairwise(widths))
        )
        with torch.no_grad():
            self.linear[-1].get_parameter("weight").zero_()
            self.linear[-1].get_parameter("bias").fill_(FIRST_OUTPUT)

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs [B, 2] for prepared examples."""
        for layer in self.convolutions:
            x = torch.relu(layer(x))
            x = _MAXIMUM[self._sides - 1](x, [min(2, side) for side in x.shape[2:]])
        # Sides of less than 32 leave less than 4. F.pad begins with the last of them.
        missing = [(0, _SIDE - side) for side in reversed(x.shape[2:])]
        x = F.pad(x, [count for side in missing for count in side]).flatten(1)
        for number, layer in enumerate(self.linear):
            x = layer(torch.relu(x) if number else x)
        return x


def _convolution(sides: int) -> _Operation:
    return partial(_CONVOLUTION[sides - 1], padding=1)


class SamePolicy(nn.Module):
    """Two numbers: the same density for every example."""

    reach = 16.0
    """One step of Adam moves a network's outputs by many times its rate, since all weights move at once."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(2, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs [B, 2] for prepared examples."""
        return (FIRST_OUTPUT + self.reach * self.numbers).expand(len(x), 2)

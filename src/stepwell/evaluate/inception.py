"""Inception-v3 (Szegedy et al. 2016) with the 2015 weights that FID is defined on, in torchvision's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Layer(NamedTuple):
    """Convolution, batch norm and ReLU; stride 2 has no padding, stride 1 keeps the size."""

    name: str
    channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1


class Branch(NamedTuple):
    """One branch of a block: pool, layers in sequence, then `ends` in parallel."""

    layers: tuple[Layer, ...] = ()
    ends: tuple[Layer, ...] = ()
    pool: str = ""
    """"", "average", "maximum", or "halve": a maximum with stride 2."""


_ROW, _COLUMN = (1, 7), (7, 1)


def _narrow(pooled: int) -> tuple[Branch, ...]:
    """Mixed_5*: 35 x 35."""
    return (
        Branch((Layer("branch1x1", 64),)),
        Branch((Layer("branch5x5_1", 48), Layer("branch5x5_2", 64, (5, 5)))),
        Branch(
            (
                Layer("branch3x3dbl_1", 64),
                Layer("branch3x3dbl_2", 96, (3, 3)),
                Layer("branch3x3dbl_3", 96, (3, 3)),
            )
        ),
        Branch((Layer("branch_pool", pooled),), pool="average"),
    )


def _middle(inner: int) -> tuple[Branch, ...]:
    """Mixed_6b to 6e: 17 x 17, rows and columns of seven."""
    double = [
        Layer(f"branch7x7dbl_{number}", inner, _COLUMN if number % 2 == 0 else _ROW) for number in (2, 3, 4)
    ]
    return (
        Branch((Layer("branch1x1", 192),)),
        Branch(
            (
                Layer("branch7x7_1", inner),
                Layer("branch7x7_2", inner, _ROW),
                Layer("branch7x7_3", 192, _COLUMN),
            )
        ),
        Branch((Layer("branch7x7dbl_1", inner), *double, Layer("branch7x7dbl_5", 192, _ROW))),
        Branch((Layer("branch_pool", 192),), pool="average"),
    )


def _wide(pool: str) -> tuple[Branch, ...]:
    """Mixed_7b and 7c: 8 x 8, branches that end in a row and a column."""
    return (
        Branch((Layer("branch1x1", 320),)),
        Branch(
            (Layer("branch3x3_1", 384),),
            (Layer("branch3x3_2a", 384, (1, 3)), Layer("branch3x3_2b", 384, (3, 1))),
        ),
        Branch(
            (Layer("branch3x3dbl_1", 448), Layer("branch3x3dbl_2", 384, (3, 3))),
            (Layer("branch3x3dbl_3a", 384, (1, 3)), Layer("branch3x3dbl_3b", 384, (3, 1))),
        ),
        Branch((Layer("branch_pool", 192),), pool=pool),
    )


_TO_17 = (
    Branch((Layer("branch3x3", 384, (3, 3), 2),)),
    Branch(
        (
            Layer("branch3x3dbl_1", 64),
            Layer("branch3x3dbl_2", 96, (3, 3)),
            Layer("branch3x3dbl_3", 96, (3, 3), 2),
        )
    ),
    Branch(pool="halve"),
)
_TO_8 = (
    Branch((Layer("branch3x3_1", 192), Layer("branch3x3_2", 320, (3, 3), 2))),
    Branch(
        (
            Layer("branch7x7x3_1", 192),
            Layer("branch7x7x3_2", 192, _ROW),
            Layer("branch7x7x3_3", 192, _COLUMN),
            Layer("branch7x7x3_4", 192, (3, 3), 2),
        )
    ),
    Branch(pool="halve"),
)
BLOCKS = {
    "Mixed_5b": (192, _narrow(32)),
    "Mixed_5c": (256, _narrow(64)),
    "Mixed_5d": (288, _narrow(64)),
    "Mixed_6a": (288, _TO_17),
    "Mixed_6b": (768, _middle(128)),
    "Mixed_6c": (768, _middle(160)),
    "Mixed_6d": (768, _middle(160)),
    "Mixed_6e": (768, _middle(192)),
    "Mixed_7a": (768, _TO_8),
    "Mixed_7b": (1280, _wide("average")),
    "Mixed_7c": (2048, _wide("maximum")),
}
"""Input channels, and the branches whose outputs are concatenated."""


DIMENSIONS = 2048
SIZE = 299
_EPSILON = 1e-3
_NORM = ("weight", "bias", "running_mean", "running_var")


class Block(nn.Module):
    """Parallel branches of convolutions, concatenated along the channels."""

    def __init__(self, inputs: int, branches: tuple[Branch, ...]) -> None:
        super().__init__()
        self._branches = branches
        for branch in branches:
            channels = inputs
            for layer in branch.layers:
                self.add_module(layer.name, _convolution(channels, layer))
                channels = layer.channels
            for layer in branch.ends:
                self.add_module(layer.name, _convolution(channels, layer))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part for branch in self._branches for part in self._parts(branch, x)], 1)

    def _parts(self, branch: Branch, x: Tensor) -> list[Tensor]:
        x = _pooled(x, branch.pool)
        for layer in branch.layers:
            x = self._run_layer(layer, x)
        return [self._run_layer(layer, x) for layer in branch.ends] or [x]

    def _run_layer(self, layer: Layer, x: Tensor) -> Tensor:
        return F.relu_(self.get_submodule(layer.name)(x))


class Inception(nn.Module):
    """Images [B, 3, 299, 299] in [-1, 1] to the features [B, 2048] of the last average pool.

    Batch norm is folded into the convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = nn.Conv2d(3, 32, 3, 2)
        self.Conv2d_2a_3x3 = nn.Conv2d(32, 32, 3)
        self.Conv2d_2b_3x3 = nn.Conv2d(32, 64, 3, padding=1)
        self.Conv2d_3b_1x1 = nn.Conv2d(64, 80, 1)
        self.Conv2d_4a_3x3 = nn.Conv2d(80, 192, 3)
        for name, (inputs, branches) in BLOCKS.items():
            self.add_module(name, Block(inputs, branches))

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        for convolution in (self.Conv2d_1a_3x3, self.Conv2d_2a_3x3, self.Conv2d_2b_3x3):
            x = F.relu_(convolution(x))
        x = F.max_pool2d(x, 3, 2)
        for convolution in (self.Conv2d_3b_1x1, self.Conv2d_4a_3x3):
            x = F.relu_(convolution(x))
        x = F.max_pool2d(x, 3, 2)
        for name in BLOCKS:
            x = self.get_submodule(name)(x)
        return x.mean((2, 3))


def expected_shapes() -> dict[str, tuple[int, ...]]:
    """The tensors that a weights file must have, with their shapes: convolution and batch norm separately."""
    with torch.device("meta"):
        network = Inception()
    shapes = dict[str, tuple[int, ...]]()
    for name, convolution in _convolutions(network):
        shapes[f"{name}.conv.weight"] = tuple(convolution.weight.shape)
        shapes |= {f"{name}.bn.{part}": (convolution.out_channels,) for part in _NORM}
    return shapes


def load_inception(stored: Mapping[str, Tensor]) -> Inception:
    """Inception with these weights (half or single precision), frozen, in float32 and eval mode."""
    network = Inception()
    for name, convolution in _convolutions(network):
        weight, bias = folded(name, stored)
        # On the CPU channels_last is a third faster, and folding another eighth.
        weight = weight.float().contiguous(memory_format=torch.channels_last)
        convolution.weight, convolution.bias = nn.Parameter(weight), nn.Parameter(bias.float())
    return network.eval().requires_grad_(False)


def folded(name: str, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """A convolution and its batch norm as one convolution (weight, bias), in float64."""
    scale, shift, mean, variance = (stored[f"{name}.bn.{part}"].double() for part in _NORM)
    factor = scale / (variance + _EPSILON).sqrt()
    return stored[f"{name}.conv.weight"].double() * factor[:, None, None, None], shift - mean * factor


def _convolutions(network: Inception) -> Iterator[tuple[str, nn.Conv2d]]:
    return ((name, part) for name, part in network.named_modules() if isinstance(part, nn.Conv2d))


def _convolution(inputs: int, layer: Layer) -> nn.Conv2d:
    rows, columns = layer.kernel
    padding = (rows // 2, columns // 2) if layer.stride == 1 else (0, 0)
    return nn.Conv2d(inputs, layer.channels, layer.kernel, layer.stride, padding)


def _pooled(x: Tensor, how: str) -> Tensor:
    if how == "average":
        return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    if how == "maximum":
        return F.max_pool2d(x, 3, 1, 1)
    return F.max_pool2d(x, 3, 2) if how == "halve" else x

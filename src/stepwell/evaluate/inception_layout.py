"""What Inception-v3 is made of (Szegedy et al. 2016), with torchvision's names: data, no computation."""

from __future__ import annotations

from typing import NamedTuple


class Layer(NamedTuple):
    """A convolution, a batch norm and a rectifier; stride 2 has no padding, stride 1 keeps the size."""

    name: str
    channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1


class Branch(NamedTuple):
    """What one branch of a block does: pool, layers one after the other, then `ends` side by side."""

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
"""Channels in, and the branches whose outputs are joined."""

"""The kernel distance between two sets of features (KID), with its standard error."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.tick import stream_key
from stepwell.evaluate.distances import checked_features, require_same_dimensions

_SUBSET = 1000
"""The subset size in the paper."""
_DRAWS = 8
"""How many draws of at most that size the error is estimated from, where the sets are larger."""


class KernelDistance(NamedTuple):
    """An unbiased estimate, which may be below 0, with its sampling error."""

    mean: float
    standard_error: float


def kernel_distance(
    features_a: Tensor, features_b: Tensor, *, subsets: int = 50, size: int | None = None, seed: int = 0
) -> KernelDistance:
    """The squared MMD with kernel (x.y / D + 1)^3, averaged over random subsets (Binkowski et al. 2018, KID).

    A subset has `size` examples of each set: 1000 by default, at most half of the smaller set. Subsets share
    examples, so their spread says little about the error of their mean: that is computed from the parts of
    the kernel's variance (Hoeffding 1948), near 0, where pairs make it, as far from 0, where examples do.
    """
    a, b = checked_features(features_a), checked_features(features_b)
    require_same_dimensions(a[0], b[0])
    smaller = min(len(a), len(b))
    size = min(_SUBSET, smaller // 2) if size is None else size
    if not 2 <= require.count("size", size, least=0) < smaller or smaller < 4:
        raise InvalidParameter(
            f"subsets of {size} from sets of {len(a)} and {len(b)}: give at least 4 examples of each, "
            "and a size of at least 2 that leaves some out."
        )
    require.count("subsets", subsets, least=2)
    generator = torch.Generator().manual_seed(stream_key(seed, "kernel-distance"))
    mean = sum(
        float(_squared_mmd(_subset(a, size, generator), _subset(b, size, generator))) for _ in range(subsets)
    )
    known = min(smaller, _SUBSET)
    draws = 1 if len(a) == len(b) == known else _DRAWS
    parts = [_parts(_subset(a, known, generator), _subset(b, known, generator)) for _ in range(draws)]
    variance = _variance(torch.stack(parts).mean(0), len(a), len(b), size, subsets)
    return KernelDistance(mean / subsets, math.sqrt(max(variance, 0.0)))


def _parts(a: Tensor, b: Tensor) -> Tensor:
    """[5]: unbiased estimates of how much kernel values vary, from two sets of the same size n.

    k(x, y) is a constant, a function of x, one of y, and a rest that neither explains. The first two are the
    variances of one example's part in the distance, of a and of b; then those of the rests within a, within
    b and between them.
    """
    n = len(a)
    between = _kernel(a, b)
    sides, rests = [], []
    centred = between - between.mean(0) - between.mean(1, keepdim=True) + between.mean()
    rest_between = centred.square().sum() / (n - 1) ** 2
    for one, across in ((a, between.mean(1)), (b, between.mean(0))):
        within = _kernel(one, one).fill_diagonal_(0)
        rows = within.sum(1) / (n - 2)
        # Székely and Rizzo 2014: centred without the diagonal, so that the sum of squares has no bias.
        within -= rows + rows.unsqueeze(1) - rows.sum() / (n - 1)
        rest = within.fill_diagonal_(0).square().sum() / (n * (n - 3))
        # A row's mean has its example's part and n rests.
        sides.append((rows - across).var() - rest / (n - 2) - rest_between / n)
        rests.append(rest)
    return torch.stack([*sides, *rests, rest_between])


def _variance(parts: Tensor, count_a: int, count_b: int, size: int, subsets: int) -> float:
    """The variance of the mean over subsets: of all examples there are, and of drawing some of them."""

    def share(of_all: float, of_subset: float) -> float:
        return 1 / of_all + (1 / of_subset - 1 / of_all) / subsets

    values: list[float] = parts.tolist()
    side_a, side_b, rest_a, rest_b, rest_between = values
    pairs = size * (size - 1)
    return (
        4 * side_a * share(count_a, size)
        + 4 * side_b * share(count_b, size)
        + 2 * rest_a * share(count_a * (count_a - 1), pairs)
        + 2 * rest_b * share(count_b * (count_b - 1), pairs)
        + 4 * rest_between * share(count_a * count_b, size**2)
    )


def _squared_mmd(a: Tensor, b: Tensor) -> Tensor:
    """The unbiased estimate from two sets of the same size, without pairs of an example with itself."""
    pairs = len(a) * (len(a) - 1)
    within = sum((_kernel(x, x).sum() - _kernel_diagonal(x).sum() for x in (a, b)), a.new_zeros(()))
    return within / pairs - 2 * _kernel(a, b).mean()


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b.T / a.shape[1] + 1) ** 3


def _kernel_diagonal(a: Tensor) -> Tensor:
    return (a.square().mean(1) + 1) ** 3


def _subset(values: Tensor, size: int, generator: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=generator)[:size]].to(torch.float64)

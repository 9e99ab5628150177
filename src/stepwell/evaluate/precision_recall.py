"""Improved precision and recall (Kynkäänniemi et al. 2019): how much of each set lies within the other.

A set's region is the union of balls around its features, each as large as the distance to the k-th nearest
other one. Distances are made in tiles, so no matrix of all pairs is ever held.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter

_TILE = 1024


class PrecisionRecall(NamedTuple):
    """Shares from 0 to 1."""

    precision: float
    """Of the generated features within the region of the real ones."""
    recall: float
    """Of the real features within the region of the generated ones."""


def precision_recall(generated: Tensor, real: Tensor, *, k: int = 3) -> PrecisionRecall:
    """Both shares of two sets of features [N, D] and [M, D]; the paper's k is 3."""
    require.count("k", k)
    for name, features in (("generated", generated), ("real", real)):
        if features.dim() != 2 or len(features) <= k:
            raise InvalidParameter(
                f"{name} features must be [N, D] with more than {k} rows, not {list(features.shape)}."
            )
    if generated.shape[1] != real.shape[1]:
        raise InvalidParameter(
            f"features of {generated.shape[1]} and of {real.shape[1]} dimensions cannot be compared."
        )
    # Far from the origin |a|^2 - 2ab + |b|^2 loses digits: the common mean goes first.
    centre = real.double().mean(0)
    a, b = generated.double() - centre, real.double() - centre
    return PrecisionRecall(_share_within(a, b, _radii(b, k)), _share_within(b, a, _radii(a, k)))


def _radii(features: Tensor, k: int) -> Tensor:
    """[N]: the squared distance of each to its k-th nearest other one."""
    found = list[Tensor]()
    for start in range(0, len(features), _TILE):
        rows = features[start : start + _TILE]
        nearest = rows.new_empty(len(rows), 0)
        for other in range(0, len(features), _TILE):
            tile = _squared_distances(rows, features[other : other + _TILE])
            if other == start:
                tile.fill_diagonal_(torch.inf)
            joined = torch.cat([nearest, tile], 1)
            nearest = joined.topk(min(k, joined.shape[1]), largest=False).values
        found.append(nearest[:, k - 1])
    return torch.cat(found)


def _share_within(points: Tensor, centres: Tensor, radii: Tensor) -> float:
    inside = 0
    for rows in points.split(_TILE):
        hit = torch.zeros(len(rows), dtype=torch.bool)
        for near, reach in zip(centres.split(_TILE), radii.split(_TILE), strict=True):
            hit |= (_squared_distances(rows, near) <= reach).any(1)
        inside += int(hit.sum())
    return inside / len(points)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    norms = a.square().sum(1)[:, None] + b.square().sum(1)
    return norms.addmm_(a, b.T, alpha=-2).clamp_(min=0)

"""What training on one part of time does to the others (Kim et al. 2025, Fig. 4).

Two looks at it: losses everywhere after a copy went on training on one range of time only, and, to first
order, the inner products of the gradients of all strata.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from stepwell.analyze.gradients import Effort, Examples, Progress, halves_of, preconditioned, unseen
from stepwell.analyze.transfer import Matrix, Transfer, estimated, rows
from stepwell.probes.view import Watched
from stepwell.samplers.gradients import strata_spec


@dataclass(frozen=True)
class Alignments:
    """Inner products of the strata's mean gradients: how fast training on i lowers the loss in j."""

    borders: tuple[float, ...]
    """[K + 1]: of the strata, in unit time."""
    metric: str
    """adam: in the metric of Adam's preconditioner; plain."""
    product: Matrix
    """[K][K]: without the part that noise would add to the diagonal."""
    margin: Matrix
    """[K][K]: half of the 95 % interval."""
    cosine: Matrix
    """[K][K]: over both norms; NaN where a stratum's mean gradient cannot be told from noise."""


@dataclass(frozen=True)
class Interdependence:
    """Both looks at one training."""

    transfer: Transfer
    alignments: Alignments

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def alignments_of(
    watched: Watched, examples: Examples, effort: Effort, metric: str = "adam", progress: Progress = unseen
) -> Alignments:
    """The alignments of any losses with any optimizer, of the objective that is trained."""
    spec = strata_spec(watched.process, effort.strata, 1, effort.images, None, metric)
    halves = halves_of(watched, examples, spec, effort.rounds, progress)
    product, margin = estimated(lambda rounds: _products(halves[rounds]), effort.rounds)
    squares = product.diagonal()
    # A norm by luck would make a cosine of +-1: where its interval reaches 0, there is none.
    norms = torch.where(squares > margin.diagonal(), squares, torch.nan).sqrt()
    cosine = (product / (norms[:, None] * norms)).clamp(-1, 1)
    scaled = spec.preconditioned and preconditioned(watched)
    return Alignments(spec.borders, "adam" if scaled else "plain", rows(product), rows(margin), rows(cosine))


def _products(halves: Tensor) -> Tensor:
    """[K, K]: inner products of mean gradients, of different examples only, from halves [R, K, 2, d]."""
    each = halves.transpose(1, 2).flatten(0, 1)
    count, total = len(each), each.sum(0)
    products = total @ total.T / count**2
    # On the diagonal, every half has met itself: its noise would be counted as a gradient.
    pairs = total.square().sum(-1) - each.square().sum((0, 2))
    return products.diagonal_scatter(pairs / (count * (count - 1)))

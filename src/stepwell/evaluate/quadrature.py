"""Means over all of time from losses at few times.

The first and the last timestep are always among the evaluated ones. Between neighbours the loss is taken to
be linear, and weights, which cost nothing, are those of every single timestep: the bound's weight changes
within two timesteps by as much as the loss does in hundreds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core.density import centres, edges
from stepwell.core.process import NoiseProcess
from stepwell.weightings import Weighting

RULE = "first to last timestep"
"""Kept with every evaluation: losses by another rule are other numbers."""
_PARTS = 64


def even_times(process: NoiseProcess, count: int) -> Tensor:
    """Unit times [count], evenly spaced from the first to the last timestep (or thousandth of time)."""
    steps = len(process.grid())
    if count == 1 or count >= steps:
        return centres(count)
    place = torch.arange(count, dtype=torch.float64)
    return (place * ((steps - 1) / (count - 1)) + 0.5) / steps


class MeanOverTime:
    """Means over time of losses that are known at times u [n], which may repeat a timestep."""

    def __init__(self, process: NoiseProcess, u: Tensor) -> None:
        self.process, u = process, u.double()
        # As fine as the losses are known, where time is continuous.
        self.cells = centres(process.timesteps or max(len(process.grid()), len(u)))
        at = process.grid()[process.index(u)] if process.timesteps else u
        known, self._place, counts = at.unique(return_inverse=True, return_counts=True)
        self._share = 1 / counts.double()
        self._right = torch.searchsorted(known, self.cells).clamp(max=len(known) - 1)
        self._left = (self._right - 1).clamp(min=0)
        gap = known[self._right] - known[self._left]
        # Beyond the first and the last known time, the loss is what it is there.
        self._lerp = ((self.cells - known[self._left]) / torch.where(gap > 0, gap, 1.0)).clamp(0, 1)

    def of_objective(self, weighting: Weighting) -> Tensor:
        """The factor [n] of every known loss in the mean weighted loss under the process's reference."""
        density, weight = self.process.reference.pdf(self.cells), weighting(self.process, self.cells)
        if self.process.timesteps is None:
            weight[0] = self._first_weight(weighting)
        return self._factors(density * weight / density.sum())

    def of_bands(self, count: int) -> Tensor:
        """[count, n]: the factor of every known loss in the mean over each of `count` equal bands."""
        borders, cells = edges(count).unsqueeze(1), edges(len(self.cells))
        ends = torch.minimum(borders[1:], cells[1:])
        overlaps = (ends - torch.maximum(borders[:-1], cells[:-1])).clamp(min=0)
        return torch.stack([self._factors(overlap * count) for overlap in overlaps])

    def _factors(self, masses: Tensor) -> Tensor:
        """[n]: from the masses of all cells to those of the known losses."""
        known = torch.zeros_like(self._share)
        known.index_add_(0, self._left, masses * (1 - self._lerp))
        known.index_add_(0, self._right, masses * self._lerp)
        factors: Tensor = (known * self._share)[self._place]
        return factors

    def _first_weight(self, weighting: Weighting) -> Tensor:
        """[]: the mean weight in the first cell: VP's bound has 1 / t there, and the eps loss is constant."""
        part = centres(_PARTS)
        u = part**2 / len(self.cells)
        on_eps = weighting(self.process, u) / self.process.eps_factor(u)
        return (on_eps * 2 * part).mean() * self.process.eps_factor(self.cells[:1])[0]

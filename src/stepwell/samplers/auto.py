"""`auto`: draws by the root of the running loss, close to the reference while few losses were seen.

Only the losses are used, which training has anyway. A `LossCurve` estimates the squared gradient at the
network's output over time: it starts flat and follows the losses as they come in. `Auto` draws in proportion
to its root, which is Neyman's allocation if the network's Jacobian is alike at all times, mixed with the
reference; where that saves little, it draws the reference.
"""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from stepwell.core import require, saved_state
from stepwell.core.allocation import neyman_masses, variance_left
from stepwell.core.density import Density, Table, not_below, tilted
from stepwell.core.feedback import Feedback, require_finite
from stepwell.core.loss_curve import LossCurve
from stepwell.core.pending import Pending
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, State, TimestepSampler
from stepwell.core.tensors import precise
from stepwell.samplers.losses import bins_of, even_bins, output_gradient
from stepwell.samplers.one_density import Learner, fingerprint

OFTEN = 1.05
"""The density is made anew whenever so many times as many losses were seen as when it was made last.

Until then losses wait, at most 32 updates: early in training every batch counts at once.
"""


def auto(
    process: NoiseProcess, bins: int = 64, floor: float = 0.2, least_gain: float = 0.02
) -> TimestepSampler:
    """p in proportion to weight x sqrt(loss), smoothed by how many losses there are.

    `floor` is the share of draws from the reference density. All are, if more than 1 - `least_gain` of the
    gradient's variance would be left.
    """
    require.between("floor", floor, 1e-3, 1)
    require.between("least_gain", least_gain, 0, 1)
    return Auto(process, bins, floor, least_gain)


class Auto(Learner):
    """Draws by the root of a `LossCurve`, as far as that saves something."""

    statistics = ("masses",)
    constants = ("borders", "shares")

    def __init__(self, process: NoiseProcess, bins: int, floor: float, least_gain: float) -> None:
        borders = even_bins(process, bins)
        shares = process.reference.masses(borders).double()
        self._reference = process.reference
        self._floor, self._least_gain = floor, least_gain
        self.label = f"auto(bins={len(shares)}, floor={floor:g}, over={fingerprint(borders, shares)})"
        self._borders = not_below(borders, torch.float32)
        self._shares = (shares / shares.sum()).float()
        # In float64 where the device has it: float32 rounds the rare ends of a reference such as EDM's.
        self._quantiles = torch.cat([shares.new_zeros(1), shares.cumsum(0)]) / shares.sum()
        self._masses = self._shares.clone()
        self._curve = LossCurve(len(shares))
        self._pending = Pending("u", "plain", "weighted")
        self._seen = self._made_at = 0
        """Losses given so far, and when the density was made."""

    def learn(self, feedback: Feedback) -> Metrics:
        plain, weighted = feedback.plain.detach().float(), feedback.weighted.detach().float()
        require_finite(plain, feedback, self)
        if feedback.counts is not None:
            plain = torch.where(feedback.counts, plain, torch.nan)
        self._pending.add(feedback.u.detach(), plain, weighted)
        self._seen += len(plain)
        grown = self._seen >= OFTEN * self._made_at
        metrics: dict[str, Tensor] = {}
        if grown or self._pending.full:
            metrics["losses_left_out"] = self._take_in()
        if grown:
            self._made_at = self._seen
            metrics["variance_ratio"] = self._allocate()
        return metrics

    def _take_in(self) -> Tensor:
        """All pending losses go into the curve; returns how many of them cannot be used."""
        self._move(self._pending.device)
        left_out = self._add_pending(self._curve)
        self._pending.clear()
        return left_out

    def _add_pending(self, curve: LossCurve) -> Tensor:
        u, plain, weighted = self._pending.joined()
        values = output_gradient(plain, weighted)
        valid = values.isfinite()
        curve.add(bins_of(u, self._borders.to(u.device)), values, valid)
        return (~valid).sum()

    def loss_curve(self, borders: Tensor) -> LossCurve | None:
        if not torch.equal(borders.cpu(), self._borders.cpu()):
            return None
        # A copy, so that asking changes nothing.
        curve = copy(self._curve)
        if self._pending:
            self._add_pending(curve)
        return curve

    def _move(self, device: torch.device) -> None:
        super()._move(device)
        self._quantiles = self._quantiles.to(device, precise(self._shares))

    def _allocate(self) -> Tensor:
        """Make the density anew; returns the share of the variance that it leaves, if the curve is right."""
        curve, _ = self._curve.fit()
        variances = (curve - curve.max()).exp().to(self._shares)
        masses = neyman_masses(variances, self._shares, self._floor)
        left = variance_left(variances, masses, self._shares)
        pays = left <= 1 - self._least_gain
        self._masses, self._density = torch.where(pays, masses, self._shares), None
        return torch.where(pays, left, 1.0)

    def _build(self) -> Density:
        if not self._made_at:
            return self._reference
        return tilted(self._reference, Table(self._quantiles, self._masses))

    def support(self, u: Tensor) -> Tensor:
        return torch.ones_like(u, dtype=torch.bool)

    def state_dict(self) -> State:
        counts = {"seen": self._seen, "made_at": self._made_at}
        return {**super().state_dict(), **self._curve.state_dict(), **self._pending.state_dict(), **counts}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._curve.load_state_dict(state)
        self._pending.load_state_dict(state)
        self._seen, self._made_at = (saved_state.count(state, name, self) for name in ("seen", "made_at"))

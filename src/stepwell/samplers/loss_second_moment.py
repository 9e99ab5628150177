"""Importance sampling by the loss's second moment (Nichol and Dhariwal 2021, Eq. 18)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Density, Table, Uniform, edges, not_below
from stepwell.core.feedback import Feedback
from stepwell.core.finite import usable
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, State, TimestepSampler, matching
from stepwell.samplers.mix import mix
from stepwell.samplers.one_density import OneDensity, fingerprint
from stepwell.samplers.static import Static

_LARGEST = 1e18
"""Its square still fits in float32."""


def loss_second_moment(
    process: NoiseProcess, history: int = 10, uniform_share: float = 0.001, bins: int | None = None
) -> TimestepSampler:
    """p in proportion to sqrt(E[loss^2]) per timestep, once each has `history` losses."""
    count = require.count("bins", (process.timesteps or 1000) if bins is None else bins)
    measure = process.reference.masses(edges(count))
    sampler = LossSecondMoment(measure, require.count("history", history))
    return mix(sampler, Static(Uniform(), "uniform"), uniform_share)


class LossSecondMoment(OneDensity):
    """The last `history` weighted losses of each of K equal bins: [K, history]."""

    learns = True

    def __init__(self, measure: Tensor, history: int) -> None:
        self._measure = measure.float()
        self._length = history
        self._borders = not_below(edges(len(measure)), torch.float32)
        self._losses = torch.zeros(len(measure), history)
        self._count = torch.zeros(len(measure), dtype=torch.long)
        self.label = (
            f"loss-second-moment(bins={len(measure)}, history={history}, over={fingerprint(measure)})"
        )
        self._refresh()

    def _refresh(self) -> None:
        root = self._losses.square().mean(1).sqrt().clamp(min=1e-30)
        full = (self._count >= self._length).all()
        masses = torch.where(full, self._measure * root, torch.ones_like(root))
        self._table = Table(self._borders, masses)

    @property
    def current(self) -> Density:
        return self._table

    def learn(self, feedback: Feedback) -> Metrics:
        losses = feedback.weighted.detach().float()
        finite = usable(losses, feedback, self)
        device, bins = losses.device, len(self._count)
        self._borders, self._measure, self._losses, self._count = (
            tensor.to(device) for tensor in (self._borders, self._measure, self._losses, self._count)
        )
        # Order the batch by bin; losses that do not count go to a bin of their own past the last.
        bin_of, order = torch.where(finite, self._table.bin_of(feedback.u), bins).sort(stable=True)
        first = torch.searchsorted(bin_of, torch.arange(bins + 2, device=device))
        arrived = first.diff()
        place = torch.arange(len(bin_of), device=device) - first[bin_of]
        # Of more than `history` losses in one bin only the newest stay: the others have no slot.
        stays = place >= arrived[bin_of] - self._length
        known = torch.cat([self._count, self._count.new_zeros(1)])
        slot = (known[bin_of] + place) % self._length
        rows = torch.where(stays, bin_of, bins)
        padded = torch.cat([self._losses, self._losses.new_zeros(1, self._length)])
        padded[rows, slot] = losses[order].clamp(max=_LARGEST)
        self._losses = padded[:-1].clone()
        self._count = self._count + arrived[:-1]
        self._refresh()
        full = (self._count >= self._length).float().mean()
        return {"bins_full": full, "losses_left_out": (~finite).sum()}

    def state_dict(self) -> State:
        return {"kind": self.label, "losses": self._losses.clone(), "count": self._count.clone()}

    def load_state_dict(self, state: State) -> None:
        matching(state, self.label)
        self._losses = state["losses"].clone().to(self._losses)
        self._count = state["count"].clone().to(self._count)
        self._refresh()

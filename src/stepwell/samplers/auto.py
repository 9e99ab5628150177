"""`auto`: draws by the root of the running loss, as sure as the losses are so far.

Only the losses are used, which training has anyway. `LossCurve` estimates the squared gradient at the
network's output over time, weight^2 x loss: a smooth curve through bins, which starts flat and follows the
losses as they come in. `Auto` draws in proportion to its root, which is Neyman's allocation if the network's
Jacobian is alike at all times, mixed with the reference; where that saves little, it draws the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.allocation import neyman_masses, variance_left
from stepwell.core.density import Density, Table, edges, not_below, tilted
from stepwell.core.feedback import Feedback, valid_losses
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, State, TimestepSampler
from stepwell.core.tensors import precise
from stepwell.samplers.losses import bins_of, log_snr_bins
from stepwell.samplers.one_density import Learner, fingerprint

RECENT = 8
"""The n-th loss of a bin counts about n^7: the last eighth of what was seen counts most."""
ROUGHNESS = 0.1
"""Expected squared change of the log curve from one bin to the next."""
OFTEN = 1.05
"""The density is made anew whenever so many times as many losses were seen as when it was made last."""


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


def even_bins(process: NoiseProcess, bins: int) -> Tensor:
    """Borders of unit time [<= bins + 1]: half of them even in reference draws, half in log-SNR."""
    half = require.count("bins", bins, least=2) // 2
    inner = process.reference.quantile(edges(bins - half)[1:-1]).double()
    if process.timesteps is not None:
        inner = (inner * process.timesteps).round() / process.timesteps
    both = {*inner.tolist(), *log_snr_bins(process, half)[1:-1].tolist()}
    return torch.tensor([0.0, *sorted(border for border in both if 0 < border < 1), 1.0], dtype=torch.float64)


class LossCurve:
    """Weight^2 x loss over bins of time: running means, and a smooth curve through them.

    A mean forgets in proportion to what it has seen, so that it is quick at first and steady later.
    """

    statistics = ("count", "mean", "square", "doubt")

    def __init__(self, bins: int) -> None:
        self.count = torch.zeros(bins)
        """[K]: losses seen in each bin."""
        self.mean = torch.zeros(bins)
        """[K]: of weight^2 x loss."""
        self.square = torch.zeros(bins)
        """[K]: of its square."""
        self.doubt = torch.ones(bins)
        """[K]: the sum of squared weights of a mean, which is 1 over the number of losses it stands for."""

    def add(self, bin_of: Tensor, values: Tensor, valid: Tensor) -> None:
        """Take in values [B] in bins [B]; those that are not valid [B] do not count."""
        for name in self.statistics:
            setattr(self, name, getattr(self, name).to(values.device))
        # A comparison, not index_add: sums in a fixed order give the same bits in every run.
        member = (bin_of[:, None] == torch.arange(len(self.count), device=values.device)) & valid[:, None]
        arrived = member.sum(0)
        both = torch.stack([values, values.square()])
        new = torch.where(member, both[:, :, None], 0.0).sum(1) / arrived.clamp(min=1)
        places = torch.arange(RECENT, device=values.device)[:, None] + self.count
        # The product over the arrived ones of n / (n + RECENT), which telescopes.
        kept = torch.where(arrived > 0, (places / (places + arrived).clamp(min=1)).prod(0), 1.0)
        self.mean, self.square = kept * torch.stack([self.mean, self.square]) + (1 - kept) * new
        self.doubt = kept.square() * self.doubt + (1 - kept).square() / arrived.clamp(min=1)
        self.count = self.count + arrived

    def fit(self) -> tuple[Tensor, Tensor]:
        """The log curve [K] around 0, and its covariance [K, K]; flat and wide before the first loss.

        A random walk from bin to bin, seen through the logarithms of noisy means (Kalman smoothing).
        """
        dtype, seen = precise(self.mean), self.count > 0
        mean, square, doubt = (value.to(dtype) for value in (self.mean, self.square, self.doubt))
        mean = torch.where(seen, mean.clamp(min=torch.finfo(torch.float32).tiny), 1.0)
        # A few losses do not tell how much they vary, and that is alike in all bins: one number for all.
        freedom = torch.where(seen, (1 / doubt - 1).clamp(min=0), 0.0)
        spread = torch.where(seen, (square / mean.square() - 1).clamp(0, 1e3), 0.0)
        relative = ((spread * freedom).sum() + 1) / (freedom.sum() + 1)
        precision = torch.where(seen, 1 / (relative * doubt).clamp(min=1e-6), 0.0)
        logs = mean.log() - (precision * mean.log()).sum() / precision.sum().clamp(min=1e-12)
        step = torch.eye(len(mean), dtype=dtype, device=mean.device).diff(dim=0)
        # A little pull to 0 keeps the system regular where no loss was seen.
        matrix = step.T @ step / ROUGHNESS + torch.diag(precision + 1e-3)
        # inv_ex does not wait for the device to report an error, which there cannot be.
        covariance = torch.linalg.inv_ex(matrix).inverse
        return covariance @ (precision * logs), covariance


class Auto(Learner):
    """Draws by the root of a `LossCurve`, as far as that saves something."""

    statistics = ("masses",)
    constants = ("borders", "shares", "quantiles")

    def __init__(self, process: NoiseProcess, bins: int, floor: float, least_gain: float) -> None:
        borders = even_bins(process, bins)
        shares = process.reference.masses(borders).double()
        self._reference = process.reference
        self._floor, self._least_gain = floor, least_gain
        self.label = f"auto(bins={len(shares)}, floor={floor:g}, over={fingerprint(borders, shares)})"
        self._borders = not_below(borders, torch.float32)
        self._shares = (shares / shares.sum()).float()
        self._quantiles = torch.cat([shares.new_zeros(1), shares.cumsum(0)]) / shares.sum()
        self._masses = self._shares.clone()
        self._curve = LossCurve(len(shares))
        self._seen = self._made_at = 0
        """Losses given so far, and when the density was made."""

    def learn(self, feedback: Feedback) -> Metrics:
        plain = feedback.plain.detach().float()
        valid = valid_losses(plain, feedback, self)
        # The squared norm of d(weighted loss) / d(output), up to a constant.
        values = feedback.weighted.detach().float().square() / plain.clamp(min=1e-30)
        valid = valid & values.isfinite()
        self._move(values.device)
        self._curve.add(bins_of(feedback.u, self._borders), values.clamp(max=1e18), valid)
        self._seen += len(values)
        metrics: dict[str, Tensor] = {"losses_left_out": (~valid).sum()}
        if self._seen >= OFTEN * self._made_at:
            self._made_at = self._seen
            metrics["variance_ratio"] = self._allocate()
        return metrics

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
        return tilted(self._reference, Table(self._quantiles, self._masses))

    def support(self, u: Tensor) -> Tensor:
        return torch.ones_like(u, dtype=torch.bool)

    def state_dict(self) -> State:
        curve = {name: getattr(self._curve, name).clone() for name in LossCurve.statistics}
        return {**super().state_dict(), **curve, "seen": self._seen, "made_at": self._made_at}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for name in LossCurve.statistics:
            setattr(self._curve, name, state[name].clone().to(getattr(self._curve, name)))
        self._seen, self._made_at = int(state["seen"]), int(state["made_at"])

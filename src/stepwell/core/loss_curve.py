"""The loss over time, from the losses that training has anyway: for `auto`, `uncertainty-mean` and forecasts.

`auto` and forecasts give it weight^2 x loss. That is the squared norm of the weighted loss's gradient at the
network's output, up to a constant, and stands for the variance of the gradient if the network's Jacobian is
alike at all times.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.core import saved_state
from stepwell.core.tensors import State, precise

RECENT = 8
"""The n-th loss of a bin counts about n^7: the last eighth of what was seen counts most."""
ROUGHNESS = 0.1
"""Expected squared change of the log curve from one bin to the next."""


class LossCurve:
    """Losses, or weight^2 x loss, over bins of time: running means, and a smooth curve through them.

    A mean forgets in proportion to what it has seen, so that it is quick at first and steady later.
    """

    statistics = ("count", "mean", "square", "inverse_size")

    def __init__(self, bins: int) -> None:
        self.count = torch.zeros(bins)
        """[K]: losses seen in each bin."""
        self.mean = torch.zeros(bins)
        """[K]: of what was added."""
        self.square = torch.zeros(bins)
        """[K]: of its square."""
        self.inverse_size = torch.ones(bins)
        """[K]: 1 over the effective number of losses in a mean (Kish): the sum of their squared weights."""

    def add(self, bin_of: Tensor, values: Tensor, valid: Tensor) -> None:
        """Take in values [B] in bins [B]; those that are not valid [B] do not count."""
        for name in self.statistics:
            setattr(self, name, getattr(self, name).to(values.device))
        # A comparison, not index_add: sums in a fixed order give the same bits in every run.
        member = (bin_of[:, None] == torch.arange(len(self.count), device=values.device)) & valid[:, None]
        arrived = member.sum(0)
        # The sum of many squares of larger ones could be infinite.
        values = values.clamp(max=1e15)
        both = torch.stack([values, values.square()])
        new = torch.where(member, both[:, :, None], 0.0).sum(1) / arrived.clamp(min=1)
        places = torch.arange(RECENT, device=values.device)[:, None] + self.count
        # The product over the arrived ones of n / (n + RECENT), which telescopes.
        kept = torch.where(arrived > 0, (places / (places + arrived).clamp(min=1)).prod(0), 1.0)
        self.mean, self.square = kept * torch.stack([self.mean, self.square]) + (1 - kept) * new
        self.inverse_size = kept.square() * self.inverse_size + (1 - kept).square() / arrived.clamp(min=1)
        self.count = self.count + arrived

    def state_dict(self) -> State:
        """All statistics."""
        return {name: getattr(self, name).clone() for name in self.statistics}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        shape = tuple(self.count.shape)
        read = {name: saved_state.tensor(state, name, "a loss curve", shape) for name in self.statistics}
        for name, value in read.items():
            setattr(self, name, value)

    def fit(self) -> tuple[Tensor, Tensor]:
        """The log curve [K] around 0, and its covariance [K, K]; flat and wide before the first loss.

        A random walk from bin to bin, seen through the logarithms of noisy means (Kalman smoothing).
        """
        logs, precision = self._logs()
        logs = logs - _mean(logs, precision)
        step = torch.eye(len(logs), dtype=logs.dtype, device=logs.device).diff(dim=0)
        # A little pull to 0 keeps the system regular where no loss was seen.
        matrix = step.T @ step / ROUGHNESS + torch.diag(precision + 1e-3)
        # inv_ex does not wait for the device to report an error, which there cannot be.
        covariance = torch.linalg.inv_ex(matrix).inverse
        return covariance @ (precision * logs), covariance

    def level(self) -> Tensor:
        """[]: the logarithm that the curve of `fit` lies around; 0 before the first loss."""
        return _mean(*self._logs())

    def _logs(self) -> tuple[Tensor, Tensor]:
        """The logarithms of the means [K], and how precise each is."""
        dtype, seen = precise(self.mean), self.count > 0
        mean, square, inverse_size = (
            value.to(dtype) for value in (self.mean, self.square, self.inverse_size)
        )
        mean = torch.where(seen, mean.clamp(min=torch.finfo(torch.float32).tiny), 1.0)
        # A few losses do not tell how much they vary, and that is alike in all bins: one number for all.
        freedom = torch.where(seen, (1 / inverse_size - 1).clamp(min=0), 0.0)
        spread = torch.where(seen, (square / mean.square() - 1).clamp(0, 1e3), 0.0)
        relative = ((spread * freedom).sum() + 1) / (freedom.sum() + 1)
        precision = torch.where(seen, 1 / (relative * inverse_size).clamp(min=1e-6), 0.0)
        return mean.log(), precision


def _mean(logs: Tensor, precision: Tensor) -> Tensor:
    return (precision * logs).sum() / precision.sum().clamp(min=1e-12)

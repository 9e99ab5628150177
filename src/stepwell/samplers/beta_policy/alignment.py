"""credit=alignment, our reward: how much a draw from each stratum of time lowers the target."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stepwell.core import saved_state
from stepwell.core.density import Density
from stepwell.core.feedback import Feedback
from stepwell.core.probe import GradientSpec
from stepwell.core.sampler import Metrics, State
from stepwell.core.tensors import Lookup, PerExample
from stepwell.samplers.beta_policy.beta import BetaTable, beta_entropy
from stepwell.samplers.beta_policy.rewards import Actions, Credit, PolicyLoss
from stepwell.samplers.gradients import Alignment


class AlignmentCredit(Credit):
    """The reward r_k of a draw from stratum k is how much it lowers the target, to first order.

    It belongs to the timestep, not to the example, so its expectation is known without sampling: the policy
    maximises the mean over x0 of sum_k p_k(x0) r_k + c H.
    """

    def __init__(self, gains: SignificantGains, table: BetaTable, entropy: float) -> None:
        self.spec: GradientSpec = gains.probe
        self._gains, self._table, self._entropy = gains, table, entropy
        borders = torch.tensor(self.spec.borders, dtype=torch.float64)
        self._shares = Lookup(table.shares(borders))

    def learn(self, feedback: Feedback) -> tuple[PolicyLoss, Metrics]:
        metrics = self._gains.learn(feedback)
        rewards = reward_of(self._gains.significant())
        ready = self._gains.ready & rewards.isfinite().all()
        rewards = torch.where(ready, rewards, 0.0)

        def loss(shapes: Tensor, actions: Actions) -> PerExample:
            masses = self._table.log_masses(shapes).exp()
            shares = masses @ self._shares.on(masses.device, masses.dtype)
            reward = (shares * rewards).sum(1)
            return -(reward + self._entropy * beta_entropy(shapes)) * ready

        return loss, metrics

    def diagnostics(self) -> Mapping[str, Tensor]:
        return self._gains.diagnostics()

    def state_dict(self) -> State:
        return {"gains": self._gains.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._gains.load_state_dict(saved_state.part(state, "gains", self))


MIN_MEASUREMENTS = 3
"""Measurements of a stratum before their spread means anything."""
ERRORS = 2.0
"""A gain of fewer standard errors than this counts as none."""


class SignificantGains(Alignment):
    """Alignment that also keeps how much the angle to the target's gradient varies between measurements.

    Where the target's weights are steep, as the bound's are near the data, one lucky measurement would
    mislead the policy. Angles, since gradients shrink during training: gains vary by that trend alone.
    """

    statistics = (*Alignment.statistics, "visits", "cosines")

    def __init__(self, label: str, reference: Density, spec: GradientSpec, decay: float) -> None:
        super().__init__(label, reference, spec, decay)
        self._visits = torch.zeros(spec.strata)
        self._cosines = torch.zeros(spec.strata, 2)

    def _update(self, halves: Tensor, images: int, kept: Tensor) -> None:
        super()._update(halves, images, kept)
        target = self._mean(self._bank)[:, 1].mean(0)
        cosine = torch.cosine_similarity(halves[0], target, dim=0)
        self._visits = self._visits + (kept < 1)
        kept = kept[:, None]
        self._cosines = kept * self._cosines + (1 - kept) * torch.stack([cosine, cosine.square()])

    def _metrics(self) -> Metrics:
        return {**super()._metrics(), "sure_gains": (self.significant() != 0).float().mean()}

    @property
    def ready(self) -> Tensor:
        """Whether every stratum was measured often enough: a bool of no dimensions, on the device."""
        return (self._visits >= MIN_MEASUREMENTS).all()

    def significant(self) -> Tensor:
        """[K]: gains in units of their mean, shrunk as noisy cosines are (James and Stein, positive part).

        Where all is noise, all are 0.
        """
        gains = self.gains()
        first, second = self._mean(self._cosines).unbind(1)
        # As many measurements as the running mean remembers.
        count = self._visits.clamp(min=2, max=(1 + self._decay) / (1 - self._decay))
        error = ((second - first.square()).clamp(min=0) / (count - 1)).sqrt()
        noise = ERRORS * error / first.abs().clamp(min=1e-30)
        return gains / gains.abs().mean().clamp(min=1e-30) * (1 - noise.square()).clamp(min=0)


def reward_of(gains: Tensor) -> Tensor:
    """The reward [K] of a draw from each stratum, from its gain in units of the mean: asinh.

    Linear in small gains; logarithmic in large ones, so that the best density goes with a power of the gains
    and a stratum far above the mean does not take all draws.
    """
    return torch.asinh(gains)

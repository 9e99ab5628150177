"""Gains of strata that can be told from noise: what a policy may be paid for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.density import Density
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.feedback import DecreaseSignal, Feedback
from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec, Times
from stepwell.core.sampler import Metrics, State
from stepwell.core.tensors import Lookup, PerExample
from stepwell.samplers.beta_policy.rewards import (
    METHODS,
    Rules,
    beta_entropy,
    beta_log_density,
    explained,
    select,
)
from stepwell.samplers.beta_policy.table import BetaTable
from stepwell.samplers.gradients import Alignment

MIN_MEASUREMENTS = 3
"""Measurements of a stratum before their spread means anything."""
ERRORS = 2.0
"""A gain of fewer standard errors than this counts as none."""


class SignificantGains(Alignment):
    """Alignment that also keeps how much the angle to the target's gradient differs between measurements.

    A policy follows what it is paid: where the target's weights are steep, as the bound's are near the data,
    one lucky measurement would carry it off. Angles, since gradients shrink as training goes on: the spread
    of the gains themselves would be that trend.
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


PolicyLoss = Callable[[Tensor, PerExample], Tensor]
"""(shapes [B, 2], the Beta variables [B] that were drawn) -> what the policy should lower."""


class Credit(ABC):
    """Turns what a probe measured into a loss of the policy."""

    spec: ProbeSpec

    @abstractmethod
    def hear(self, feedback: Feedback) -> tuple[PolicyLoss, Metrics]:
        """Take in a signal: what the policy should lower now, and what is worth recording."""

    @abstractmethod
    def diagnostics(self) -> Mapping[str, Tensor]:
        """What is worth keeping with every evaluation."""

    @abstractmethod
    def state_dict(self) -> State: ...

    @abstractmethod
    def load_state_dict(self, state: State) -> None: ...


@dataclass(frozen=True)
class Choice:
    """How the subset S is chosen."""

    method: str
    """Of `selection.METHODS`; "all" keeps every timestep."""
    queue: int
    """Rows that it is chosen from: those of the last policy updates."""


class DecreaseCredit(Credit):
    """Each example is paid for its own decrease at S, whatever timestep caused it (Algorithms 1 and 2).

    S is chosen among the times of the queue's rows, so that it explains their sum.
    """

    def __init__(
        self, spec: DecreaseSpec, table: BetaTable, rules: Rules, choice: Choice, entropy: float
    ) -> None:
        if choice.method != "all":
            require.one_of("selection", choice.method, METHODS)
        require.count("queue", choice.queue, least=rules.least_rows)
        self.spec: DecreaseSpec = spec
        self._table, self._rules, self._choice, self._entropy = table, rules, choice, entropy
        self._queue = torch.zeros(0, len(spec.grid))

    def hear(self, feedback: Feedback) -> tuple[PolicyLoss, Metrics]:
        signal = feedback.signal
        if not isinstance(signal, DecreaseSignal):
            raise Unsupported(
                f"this Beta policy learns from the decrease of losses, not {type(signal).__name__}."
            )
        wanted = (len(self.spec.grid),), len(self.spec.subset)
        if (tuple(signal.row.shape), signal.rewards.shape[-1]) != wanted:
            raise InvalidParameter(
                f"the decrease has a row of {tuple(signal.row.shape)} and rewards of "
                f"{tuple(signal.rewards.shape)}, but was asked for at {wanted[0][0]} and {wanted[1]} times."
            )
        reward = self._rules.reward(signal.rewards.detach().float())
        metrics = {**_reward_metrics(reward), **self._push(signal.row, feedback)}

        def loss(shapes: Tensor, drawn: PerExample) -> Tensor:
            of = beta_log_density if self._rules.continuous else self._table.log_prob
            return self._rules.loss(of(shapes, drawn), beta_entropy(shapes), reward, self._entropy)

        return loss, metrics

    def _push(self, row: Tensor, feedback: Feedback) -> Metrics:
        """One more row in the queue, and S chosen anew."""
        if self._choice.method == "all":
            return {}
        row = row.detach().float().nan_to_num(0.0, 0.0, 0.0)
        self._queue = torch.cat([self._queue.to(row.device), row[None]])[-self._choice.queue :]
        rows, count = self._queue, len(self.spec.subset)
        if len(rows) < self._rules.least_rows:
            return {}
        # The whole objective, had every timestep been measured.
        y = rows.sum(1) * (self._table.timesteps / rows.shape[1])
        key = feedback.tick.shared().key("subset")
        chosen = select(rows, y, count, self._choice.method, key)
        # The only values that are read back, once in a policy update: the next probe must know its times.
        subset = tuple(self.spec.grid[index] for index in chosen.tolist())
        self.spec = replace(self.spec, subset=subset)
        # With fewer rows any S explains everything.
        return {"explained": explained(rows, y, chosen)} if len(rows) > count + 1 else {}

    def diagnostics(self) -> Mapping[str, Tensor]:
        return {"subset": torch.tensor(self.spec.subset)}

    def state_dict(self) -> State:
        subset = torch.tensor(self.spec.subset, dtype=torch.float64)
        return {"queue": self._queue.clone(), "subset": subset}

    def load_state_dict(self, state: State) -> None:
        self._queue = state["queue"].clone()
        subset: Times = tuple(state["subset"].tolist())
        self.spec = replace(self.spec, subset=subset)


class AlignmentCredit(Credit):
    """Each stratum of time is paid what a draw from it lowers the target by, to first order.

    That reward belongs to the timestep, not to the example, so its expectation is known exactly: the policy
    climbs mean over x0 of sum_k p_k(x0) r_k + c H, and nothing is sampled.
    """

    def __init__(self, gains: SignificantGains, table: BetaTable, entropy: float) -> None:
        self.spec: GradientSpec = gains.probe
        self._gains, self._table, self._entropy = gains, table, entropy
        borders = torch.tensor(self.spec.borders, dtype=torch.float64)
        self._shares = Lookup(table.shares(borders))

    def hear(self, feedback: Feedback) -> tuple[PolicyLoss, Metrics]:
        metrics = self._gains.learn(feedback)
        rewards = worth(self._gains.significant())
        ready = self._gains.ready & rewards.isfinite().all()
        rewards = torch.where(ready, rewards, 0.0)

        def loss(shapes: Tensor, drawn: PerExample) -> Tensor:
            masses = self._table.log_masses(shapes).exp()
            shares = masses @ self._shares.on(masses.device, masses.dtype)
            reward = (shares * rewards).sum(1).mean()
            return -(reward + self._entropy * beta_entropy(shapes).mean()) * ready

        return loss, metrics

    def diagnostics(self) -> Mapping[str, Tensor]:
        return self._gains.diagnostics()

    def state_dict(self) -> State:
        return {"gains": self._gains.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._gains.load_state_dict(state["gains"])


def worth(gains: Tensor) -> Tensor:
    """The reward [K] of a draw from each stratum, from its gain in units of the mean: asinh.

    Linear in small gains; logarithmic in large ones, so that the best density goes with a power of the gains
    and a stratum far above the mean does not take all draws.
    """
    return torch.asinh(gains)


def _reward_metrics(reward: PerExample) -> Metrics:
    error = reward.std(correction=0) / len(reward) ** 0.5
    return {"reward": reward.mean(), "reward_snr": reward.mean().abs() / error.clamp(min=1e-30)}

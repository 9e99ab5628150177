"""credit=decrease, the paper's reward: the measured decrease at a few timesteps that stand for all.

Kim et al. (2025), Algorithms 1 and 2: the timesteps S are those that best explain the sum of a queue of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from stepwell.core import require, saved_state
from stepwell.core.errors import InvalidParameter, StateMismatch, Unsupported
from stepwell.core.feedback import DecreaseSignal, Feedback
from stepwell.core.probe import DecreaseSpec
from stepwell.core.sampler import Metrics, State
from stepwell.core.tensors import PerExample, precise
from stepwell.core.tick import uniforms
from stepwell.samplers.beta_policy.beta import BetaTable, beta_entropy, beta_log_density
from stepwell.samplers.beta_policy.rewards import Actions, Credit, PolicyLoss, Rules

METHODS = ("f", "forward", "random", "grid")


class DecreaseCredit(Credit):
    """Each example is rewarded for its own decrease at the times S, whatever timestep caused it.

    S is chosen among the times of the queue's rows, so that it explains their sum.
    """

    def __init__(
        self, spec: DecreaseSpec, table: BetaTable, rules: Rules, selection: str, queue: int, entropy: float
    ) -> None:
        self.spec: DecreaseSpec = spec
        self._table, self._rules, self._entropy = table, rules, entropy
        self._selection = require.one_of("selection", selection, METHODS)
        self._length = require.count("queue", queue, least=rules.least_rows, most=require.MOST_BINS)
        self._queue = torch.zeros(0, len(spec.grid))

    def learn(self, feedback: Feedback) -> tuple[PolicyLoss, Metrics]:
        signal = feedback.signal
        if not isinstance(signal, DecreaseSignal):
            raise Unsupported(
                f"this Beta policy learns from the decrease of losses, not {type(signal).__name__}."
            )
        # Measured already, at the subset of the last update; or Algorithm 2's order: push, select, pay.
        rewards = None if self.spec.late else self._checked(signal, signal.rewards)
        metrics = self._push(signal.row, feedback)
        if rewards is None:
            if signal.rewards_at is None:
                raise InvalidParameter("paper=true chooses its times first: the signal needs rewards_at.")
            rewards = self._checked(signal, signal.rewards_at(self.spec.subset))
        reward = self._rules.reward(rewards.detach().float())
        metrics = {**_reward_metrics(reward), **metrics}

        def loss(shapes: Tensor, actions: Actions) -> PerExample:
            log_density = beta_log_density if self._rules.continuous else self._table.log_prob
            log_prob = log_density(shapes, actions.drawn)
            # Rewards of another sampler's draws are no part of the mean and the deviation either.
            own = torch.where(actions.own, reward, torch.nan)
            return self._rules.loss(log_prob, beta_entropy(shapes), own, self._entropy)

        return loss, metrics

    def _checked(self, signal: DecreaseSignal, rewards: Tensor) -> Tensor:
        wanted = (len(self.spec.grid),), len(self.spec.subset)
        if (tuple(signal.row.shape), rewards.shape[-1]) != wanted:
            raise InvalidParameter(
                f"the decrease has a row of {tuple(signal.row.shape)} and rewards of "
                f"{tuple(rewards.shape)}, but was asked for at {wanted[0][0]} and {wanted[1]} times."
            )
        return rewards

    def _push(self, row: Tensor, feedback: Feedback) -> Metrics:
        """Add a row to the queue and choose S again."""
        if not self.spec.grid:
            return {}
        row = row.detach().float().nan_to_num(0.0, 0.0, 0.0)
        self._queue = torch.cat([self._queue.to(row.device), row[None]])[-self._length :]
        rows, count = self._queue, len(self.spec.subset)
        if len(rows) < self._rules.least_rows:
            return {}
        # The whole objective, had every timestep been measured.
        y = rows.sum(1) * (self._table.timesteps / rows.shape[1])
        key = feedback.tick.shared_key("subset")
        chosen = select(rows, y, count, self._selection, key)
        # The only read from the device, once in a policy update: the next probe must know its times.
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
        queue = saved_state.tensor(state, "queue", self, (None, len(self.spec.grid)))
        subset = saved_state.tensor(state, "subset", self, (len(self.spec.subset),))
        if not bool(((subset >= 0) & (subset < 1)).all()):
            raise StateMismatch(f"the state that was given to {self} has times outside of [0, 1).")
        self._queue, self.spec = queue, replace(self.spec, subset=tuple(subset.tolist()))


def _reward_metrics(reward: PerExample) -> Metrics:
    error = reward.std(correction=0) / len(reward) ** 0.5
    return {"reward": reward.mean(), "reward_snr": reward.mean().abs() / error.clamp(min=1e-30)}


_ROUNDING = 1e-12
"""A column whose centred part is smaller than this, relative to itself, does not vary."""


def select(rows: Tensor, y: Tensor, count: int, method: str, key: int = 0) -> Tensor:
    """The indices [count], rising, of the columns of rows [n, G] that stand for y [n].

    f: the largest univariate F statistics (the paper); forward: greedily, by what is left to explain;
    random: a function of `key`; grid: evenly spaced. The last two ignore the rows: controls.
    """
    require.one_of("selection", method, METHODS)
    columns = rows.shape[1]
    if not 0 < count <= columns:
        raise InvalidParameter(f"{count} of {columns} columns cannot be selected.")
    if method == "grid":
        chosen = spaced(count, columns, rows.device)
    elif method == "random":
        chosen = uniforms(key, columns, rows.device).argsort()[:count]
    elif method == "forward":
        chosen = _forward(rows, y, count)
    else:
        # Stable, and the last of equals: as scikit-learn's SelectKBest decides them.
        chosen = f_statistic(rows, y).argsort(stable=True)[-count:]
    return chosen.sort().values


def spaced(count: int, total: int, device: torch.device | str = "cpu") -> Tensor:
    """`count` indices [count] in the middles of equal parts of range(total)."""
    return (2 * torch.arange(count, device=device) + 1) * total // (2 * count)


def f_statistic(rows: Tensor, y: Tensor) -> Tensor:
    """F [G] of the regression of y [n] on each column of rows [n, G] alone: r^2 / (1 - r^2) (n - 2).

    A column that does not vary has 0, one that fits perfectly the largest number there is.
    """
    x, z = _centred(rows), _centred(y)
    both = x.square().sum(0) * z.square().sum()
    squared = ((x * z[:, None]).sum(0).square() / both.clamp(min=torch.finfo(both.dtype).tiny)).clamp(max=1)
    f = squared / (1 - squared) * (len(y) - 2)
    return f.nan_to_num(0.0)


def explained(rows: Tensor, y: Tensor, chosen: Tensor) -> Tensor:
    """R^2 of the regression of y [n] on the columns [S] of rows [n, G] together."""
    x, z = _centred(rows), _centred(y)
    total = z.square().sum()
    for index in chosen:
        x, z = _without(x, z, index)
    return 1 - z.square().sum() / total.clamp(min=torch.finfo(total.dtype).tiny)


def _forward(rows: Tensor, y: Tensor, count: int) -> Tensor:
    """Greedily: each time the column that leaves the smallest residual of y with those chosen before."""
    x, z = _centred(rows), _centred(y)
    left = torch.zeros_like(x[0], dtype=torch.bool)
    chosen: list[Tensor] = []
    for _ in range(count):
        norms = x.square().sum(0)
        gain = (x * z[:, None]).sum(0).square() / norms.clamp(min=torch.finfo(norms.dtype).tiny)
        best = torch.where(left, -1.0, gain).argmax()
        left = left.index_fill(0, best, True)
        chosen.append(best)
        x, z = _without(x, z, best)
    return torch.stack(chosen)


def _without(x: Tensor, z: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Columns [n, G] and target [n] with the direction of one column taken out (Gram-Schmidt)."""
    direction = x.index_select(1, index.reshape(1))[:, 0]
    unit = direction / direction.norm().clamp(min=torch.finfo(x.dtype).tiny)
    rest = x - unit[:, None] * (unit @ x)
    # What rounding leaves of a column that is in the span of the others is no column.
    rest = torch.where(rest.square().sum(0) > _ROUNDING * x.square().sum(0), rest, 0.0)
    return rest, z - unit * (unit @ z)


def _centred(values: Tensor) -> Tensor:
    """Columns minus their means, in float64 if the device has it; exactly 0 where only rounding is left."""
    exact = values.to(precise(values)).nan_to_num(0.0, 0.0, 0.0)
    centred = exact - exact.mean(0)
    varies = centred.square().sum(0) > _ROUNDING**2 * exact.square().sum(0)
    return torch.where(varies, centred, 0.0)

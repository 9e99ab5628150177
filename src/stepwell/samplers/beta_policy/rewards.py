"""Which few timesteps stand for all: those that explain the sum of the queue's rows (Kim et al. 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.tensors import PerExample, precise
from stepwell.core.tick import uniforms
from stepwell.samplers.beta_policy.policy import LARGEST, Bounds

METHODS = ("f", "forward", "random", "grid")
_ROUNDING = 1e-12
"""A column whose centred part is smaller than this, relative to itself, does not vary."""


def select(rows: Tensor, y: Tensor, count: int, method: str, key: int = 0) -> Tensor:
    """The indices [count], rising, of the columns of rows [n, G] that stand for y [n].

    f: the largest univariate F statistics (the paper); forward: greedily, by what is left to explain;
    random: a function of `key`; grid: evenly spaced. The last two look at nothing: controls.
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
    """Each time the column that leaves the smallest residual of y beside those chosen before."""
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


_CLEAR_OF_ENDS = 2.0**-20
"""The log-density of a Beta is unbounded at 0 and 1 where a or b is below 1."""
_SMALLEST_SPREAD = 1e-20


@dataclass(frozen=True)
class Rules:
    """One field per difference, with the reason for the default."""

    target: str = "vlb"
    """The paper's L = c_t |eps - eps'|^2, capped; the code's KL gives t = 0 the variance of t = 1, no cap."""
    bits: bool = False
    """The code's KL is in bits, 1 / ln 2 times as large: matters only beside the entropy."""
    summed: bool = False
    """The paper averages a reward over S; the code adds, which ties the reward's scale to |S|."""
    fresh_noise: bool = False
    """The code measures with new noise after the update: 12 to 47 times the spread, all of it noise."""
    train_mode: bool = False
    """The code leaves dropout on, with another mask after the update: noise again."""
    advantage: bool = True
    """Neither has a baseline. Without one, what all examples share drowns what tells them apart."""
    entropy_in_reward: bool = False
    """The code multiplies c H by log pi: a force |H| times the intended one, nothing near the start."""
    continuous: bool = False
    """The code's log pi is the Beta's density at u; ours is that of the table which t is drawn from."""
    rounded: bool = False
    """The code's t = round(u (T - 1)) halves the first and the last timestep; the paper does not say."""
    lowest_first: bool = False
    """The code starts from S = {0, 1, 2}; evenly spaced timesteps prefer none."""
    least_rows: int = 3
    """Rows before S is chosen. The code chooses from 2, where every F is 0/0 and the last timesteps win."""
    grid: int | None = 50
    """Times in a row of the queue. Neighbours fall alike, so 50 do; None, as in the code: every timestep."""
    hidden: int = 128
    """Of the policy network: 128 in the paper's table, 256 in the code's configuration."""
    largest: int = 8
    """Pixels of a side that the policy sees: 8 cost a third of the time of the code's 32, or less."""
    floor: float = 0.1
    """Share of the objective's own draws. Without it a noisy reward may starve a timestep for good."""
    bounds: Bounds = field(default_factory=lambda: Bounds(least=0.5, most=32.0))
    """Of a and b: at most a fifth of all draws is one of 1000 timesteps. The code has none."""

    def reward(self, rewards: Tensor) -> PerExample:
        """One reward per example [B] from those at S [B, |S|]."""
        reward = rewards.sum(1) if self.summed else rewards.mean(1)
        return reward / math.log(2) if self.bits else reward

    def loss(self, log_prob: PerExample, entropy: PerExample, reward: PerExample, weight: float) -> Tensor:
        """REINFORCE: -mean(log pi advantage) - weight mean(H); the code -mean(log pi (reward + weight H))."""
        worth = advantage(reward) if self.advantage else reward.nan_to_num(0.0, 0.0, 0.0)
        if self.entropy_in_reward:
            return -(log_prob * (worth + weight * entropy)).mean()
        return -(log_prob * worth).mean() - weight * entropy.mean()


CORRECTED = Rules()
PUBLISHED = Rules(
    target="vlb:variance=fixed-large-clipped,cap=none",
    bits=True,
    summed=True,
    fresh_noise=True,
    train_mode=True,
    advantage=False,
    entropy_in_reward=True,
    continuous=True,
    rounded=True,
    lowest_first=True,
    least_rows=2,
    grid=None,
    hidden=256,
    largest=LARGEST,
    floor=0.0,
    bounds=Bounds(),
)


def beta_entropy(shapes: Tensor) -> Tensor:
    """The entropy [B] of Beta(a, b) in nats, for shapes (a, b) [B, 2]."""
    a, b = shapes.unbind(1)
    spread = (a - 1) * torch.digamma(a) + (b - 1) * torch.digamma(b)
    return _log_beta(a, b) - spread + (a + b - 2) * torch.digamma(a + b)


def beta_log_density(shapes: Tensor, x: PerExample) -> PerExample:
    """ln Beta(x; a, b) [B], kept clear of the ends of [0, 1]."""
    a, b = shapes.unbind(1)
    x = x.clamp(_CLEAR_OF_ENDS, 1 - _CLEAR_OF_ENDS)
    return (a - 1) * x.log() + (b - 1) * torch.log1p(-x) - _log_beta(a, b)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def advantage(reward: PerExample) -> PerExample:
    """(reward - mean) / standard deviation over the batch [B]; 0 where a reward is not finite."""
    finite = reward.isfinite()
    count = finite.sum().clamp(min=1)
    known = torch.where(finite, reward, 0.0)
    centred = torch.where(finite, known - known.sum() / count, 0.0)
    return centred / ((centred.square().sum() / count).sqrt() + _SMALLEST_SPREAD)

"""What the Beta policy maximises: the interface, and the rules of the default, the paper and its code."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stepwell.core.feedback import Feedback
from stepwell.core.probe import ProbeSpec
from stepwell.core.sampler import Metrics, State
from stepwell.core.tensors import PerExample
from stepwell.samplers.beta_policy.policy import LARGEST, Bounds


@dataclass(frozen=True)
class Actions:
    """What the policy drew for a batch."""

    drawn: PerExample
    """[B]: the Beta variables."""
    own: Tensor
    """[B] bool: which examples the policy drew for. The others are another sampler's: `mix`."""

    @classmethod
    def of(cls, drawn: PerExample) -> Actions:
        """From Beta variables that are NaN where another sampler drew."""
        own = drawn.isfinite()
        # Any value inside will do: a gradient through NaN would be NaN even where it does not count.
        return cls(torch.where(own, drawn, 0.5), own)


PolicyLoss = Callable[[Tensor, Actions], PerExample]
"""(shapes [B, 2], actions) -> the losses [B] whose mean over own examples a policy step lowers."""


class Credit(ABC):
    """Turns what a probe measured into a loss of the policy."""

    spec: ProbeSpec

    def __str__(self) -> str:
        return "beta-policy's reward"

    @abstractmethod
    def learn(self, feedback: Feedback) -> tuple[PolicyLoss, Metrics]:
        """Take in a measurement: the loss for the next policy step, and metrics."""

    @abstractmethod
    def diagnostics(self) -> Mapping[str, Tensor]:
        """Tensors to record with every evaluation."""

    @abstractmethod
    def state_dict(self) -> State: ...

    @abstractmethod
    def load_state_dict(self, state: State) -> None: ...


@dataclass(frozen=True)
class Rules:
    """One field per difference between our default, the paper and its official code, with our reason.

    catalogue/differences.py has those from the paper in words, for `stepwell ls -p` and the documents.
    """

    target: str = "vlb"
    """The paper's L = c_t |eps - eps'|^2, capped; the code's KL gives t = 0 the variance of t = 1, no cap."""
    squared_norm: bool = False
    """The paper's loss is a sum over dimensions; a mean does not tie the reward's scale to the image's."""
    late: bool = False
    """The paper pays on the S that this update's row has just been used to choose; the code, as we, on the
    last one, whose losses can be measured before the update, without a copy of the weights."""
    earlier_example: bool = False
    """The paper's row is of an image of the data, the code's, as ours, of one that this update trained on."""
    bits: bool = False
    """The code's KL is in bits, 1 / ln 2 times as large: matters only relative to the entropy."""
    summed: bool = False
    """The paper averages a reward over S; the code adds, which ties the reward's scale to |S|."""
    fresh_noise: bool = False
    """The code measures with new noise after the update: 12 to 47 times the spread, all of it noise."""
    train_mode: bool = False
    """The code leaves dropout on, with another mask after the update: noise again."""
    advantage: bool = True
    """Neither has a baseline. Without one, the part that all examples share hides their differences."""
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
    """Times in a row of the queue. Neighbours are alike, so 50 are enough; None, as in both: all."""
    hidden: int = 128
    """Width of the policy network: 128 in the paper's table, 256 in the code's configuration."""
    largest: int = 8
    """Pixels of a side that the policy sees: 8 cost a third of the time of the published 32, or less."""
    floor: float = 0.1
    """Share of the objective's own draws. Without it a noisy reward may starve a timestep for good."""
    bounds: Bounds = field(default_factory=lambda: Bounds(least=0.5, most=32.0))
    """Largest a and b: at most a fifth of all draws is one of 1000 timesteps. Neither has any."""

    def reward(self, rewards: Tensor) -> PerExample:
        """One reward per example [B] from those at S [B, |S|]."""
        reward = rewards.sum(1) if self.summed else rewards.mean(1)
        return reward / math.log(2) if self.bits else reward

    def loss(
        self, log_prob: PerExample, entropy: PerExample, reward: PerExample, weight: float
    ) -> PerExample:
        """REINFORCE [B]: -log pi advantage - weight H; the code has -log pi (reward + weight H)."""
        value = advantage(reward) if self.advantage else reward.nan_to_num(0.0, 0.0, 0.0)
        if self.entropy_in_reward:
            return -log_prob * (value + weight * entropy)
        return -log_prob * value - weight * entropy


CORRECTED = Rules()
PAPER = Rules(
    target="vlb:cap=none",
    squared_norm=True,
    late=True,
    earlier_example=True,
    advantage=False,
    grid=None,
    largest=LARGEST,
    floor=0.0,
    bounds=Bounds(),
)
"""Where the paper says nothing (noise, dropout, rounding, the first S, F of two rows) it is our default."""
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


_SMALLEST_SPREAD = 1e-20


def advantage(reward: PerExample) -> PerExample:
    """(reward - mean) / standard deviation over the batch [B]; 0 where a reward is not finite."""
    finite = reward.isfinite()
    count = finite.sum().clamp(min=1)
    known = torch.where(finite, reward, 0.0)
    centred = torch.where(finite, known - known.sum() / count, 0.0)
    return centred / ((centred.square().sum() / count).sqrt() + _SMALLEST_SPREAD)

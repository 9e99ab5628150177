"""The interface of a weighting, and of one that learns: its `learn` takes in the losses of every update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol

from stepwell.core.feedback import Feedback
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import Metrics, PerExample, State


class Weighting(Protocol):
    """The weight [B] on the loss of the process's own target."""

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample: ...


class LearnedWeighting(ABC):
    """A weighting that follows the losses; its weights are constants to the network's gradient.

    Whoever trains gives it the losses of all ranks after every update, as a pacer does, so that every rank
    holds the same weighting. Each training needs one of its own.
    """

    @abstractmethod
    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        """The current weights [B] at u [B]."""

    @abstractmethod
    def learn(self, process: NoiseProcess, feedback: Feedback) -> Metrics:
        """Learn from the losses of one update; returns metrics to log."""

    @abstractmethod
    def state_dict(self) -> State:
        """Everything that the next weights depend on."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""


@dataclass(frozen=True)
class _Frozen:
    """A weighting without its `learn`."""

    weighting: Weighting

    def __call__(self, process: NoiseProcess, u: PerExample) -> PerExample:
        return self.weighting(process, u)


def frozen(weighting: Weighting) -> Weighting:
    """The weighting as it is now: a copy if it learns, else itself."""
    return _Frozen(deepcopy(weighting)) if isinstance(weighting, LearnedWeighting) else weighting

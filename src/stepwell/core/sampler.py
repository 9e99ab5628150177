"""The interface of a timestep sampler: `draw` chooses timesteps, `learn` takes in what an update did."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stepwell.core.density import Density, edges
from stepwell.core.errors import StateMismatch
from stepwell.core.feedback import Feedback
from stepwell.core.probe import ProbeSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import Metrics as Metrics
from stepwell.core.tensors import PerExample
from stepwell.core.tensors import State as State
from stepwell.core.tick import Tick


@dataclass(frozen=True, slots=True)
class Draw:
    """Timesteps for one batch."""

    u: PerExample
    """[B]: unit time."""
    log_prob: PerExample
    """[B]: the log of the density that each u was drawn from."""
    correction: PerExample
    """[B]: the factor that keeps the objective (reference / density); 1 unless `unbiased`."""
    action: Tensor | None = None
    """[B, ...]: whatever the sampler wants to hear back in its feedback."""


_RENAMED = {"place": "from_uniform", "reaches": "support", "portrait": "diagnostics"}
"""Methods of version 0.1 and their names since; the old ones go with the next release."""


class TimestepSampler(ABC):
    """Which timesteps to train on. It sees x0 and unit time, never a model or a weighting."""

    reference: Density | None = None
    """The density that the corrections restore; None if there are none."""
    learns: bool = False
    """Whether `learn` does anything: if not, nobody has to gather feedback for it."""
    learns_from_losses: bool = True
    """Whether it learns in every update; if not, only when its probe has measured."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, new in _RENAMED.items():
            if new in vars(cls):
                setattr(cls, old, _deprecated(old, new, vars(cls)[new]))
            elif old in vars(cls):
                message = f"{cls.__name__}.{old}: this method is called {new} now. Please rename it."
                warnings.warn(message, DeprecationWarning, stacklevel=3)
                setattr(cls, new, vars(cls)[old])

    @property
    def probe(self) -> ProbeSpec | None:
        """What has to be measured for this sampler; None costs nothing."""
        return None

    def draw(self, x0: Tensor, tick: Tick) -> Draw:
        """Timesteps for the examples x0 [B, ...]: a pure function of the sampler's state, x0 and tick."""
        return self.from_uniform(tick.uniform("timestep", len(x0), x0.device), x0, tick)

    @abstractmethod
    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        """The draw that uniforms v stand for: an inverse CDF, so that combinators can choose v."""

    @abstractmethod
    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        """The density [n] at u [n] now; given x0, of the draws for that batch."""

    @abstractmethod
    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        """The mass [n] below u [n] now."""

    def support(self, u: Tensor) -> Tensor:
        """Which u [n] can be drawn, now and whenever the density has moved on."""
        return self.density(u) > 0

    def masses(self, borders: Tensor) -> Tensor:
        """The mass [K] between neighbours of rising borders [K + 1], now."""
        return self.cdf(borders).diff()

    def diagnostics(self) -> Mapping[str, Tensor]:
        """What is worth keeping beside the density, such as a matrix: recorded with every evaluation."""
        return {}

    @abstractmethod
    def learn(self, feedback: Feedback) -> Metrics:
        """Take in what one update did."""

    @abstractmethod
    def state_dict(self) -> State:
        """Everything that the next draw depends on, beside the tick."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""


def _deprecated(old: str, new: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A sampler's method under its old name."""

    def call(*arguments: Any, **options: Any) -> Any:
        warnings.warn(f"sampler.{old} is called {new} now.", DeprecationWarning, stacklevel=2)
        return method(*arguments, **options)

    return call


for _old, _new in _RENAMED.items():
    setattr(TimestepSampler, _old, _deprecated(_old, _new, vars(TimestepSampler)[_new]))


def require_kind(state: State, kind: str) -> State:
    """`state`, if it was written by a sampler of this kind (and these parameters)."""
    found = state.get("kind") if isinstance(state, Mapping) else None
    if found != kind:
        raise StateMismatch(
            f"this state was saved by {found or 'something that is not a sampler'}, "
            f"but it is being loaded into {kind}: build the sampler it was saved from, "
            "or start without the state."
        )
    return state


def pmf(sampler: TimestepSampler, process: NoiseProcess) -> Tensor:
    """The probability of every timestep [T] (of every thousandth, if time is continuous)."""
    return sampler.masses(edges(len(process.grid())))

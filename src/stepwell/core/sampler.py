"""The interface of a timestep sampler: `draw` chooses timesteps, `learn` takes in what an update did."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stepwell.core.density import Density, edges
from stepwell.core.deprecated import keep_old_methods
from stepwell.core.errors import StateMismatch
from stepwell.core.feedback import Feedback
from stepwell.core.loss_curve import LossCurve
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
    """[B, ...]: floats that the sampler wants returned in its feedback; NaN where `mix` let another draw."""


_RENAMED = {"place": "from_uniform", "reaches": "support", "portrait": "diagnostics"}
"""Methods of version 0.1 and their names since; the old ones go with the next release."""


class TimestepSampler(ABC):
    """Chooses the timesteps to train on, from x0 and unit time: it knows no model and no weighting."""

    reference: Density | None = None
    """The density that the corrections restore; None without corrections."""
    learns: bool = False
    """Whether `learn` does anything: if not, no feedback is gathered."""
    learns_from_losses: bool = True
    """Whether it learns from the losses of every update, or only from what its probe measures."""
    written: str = ""
    """Its name and settings, as NAME:key=value,...; empty if it was put together in code."""

    def __str__(self) -> str:
        return self.written or without_fingerprints(repr(self))

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        keep_old_methods(cls, _RENAMED)

    @property
    def probe(self) -> ProbeSpec | None:
        """What has to be measured for this sampler; None: nothing."""
        return None

    def draw(self, x0: Tensor, tick: Tick) -> Draw:
        """Timesteps for the examples x0 [B, ...]: a pure function of the sampler's state, x0 and tick."""
        return self.from_uniform(tick.uniform("timestep", len(x0), x0.device), x0, tick)

    @abstractmethod
    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        """The draws at uniforms v [B], by inverse CDF, so that combinators can choose v."""

    @abstractmethod
    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        """The current density [n] at u [n]; with x0, that of the draws for this batch."""

    @abstractmethod
    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        """The current mass [n] below u [n]."""

    def support(self, u: Tensor) -> Tensor:
        """Which u [n] can be drawn (bool [n]), now and whatever is learned."""
        return self.density(u) > 0

    def masses(self, borders: Tensor) -> Tensor:
        """The current mass [K] between rising borders [K + 1]."""
        return self.cdf(borders).diff()

    def loss_curve(self, borders: Tensor) -> LossCurve | None:
        """The curve of weight^2 x loss between these borders [K + 1] of unit time, if it keeps just that."""
        return None

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Tensors to record with every evaluation beside the density, such as a matrix over strata."""
        return {}

    @abstractmethod
    def learn(self, feedback: Feedback) -> Metrics:
        """Learn from one update; returns metrics to log."""

    @abstractmethod
    def state_dict(self) -> State:
        """Everything that the next draw depends on, except the tick."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""


keep_old_methods(TimestepSampler, _RENAMED)


def require_kind(state: State, kind: str, what: str = "sampler") -> State:
    """`state`, if a sampler (or `what`) of this kind and these parameters saved it."""
    saved = state.get("kind") if isinstance(state, Mapping) else None
    if saved != kind:
        there, here = (without_fingerprints(str(one)) for one in (saved, kind))
        there = f"something that is not a {what}" if saved is None else there
        raise StateMismatch(
            f"this state was saved by {there}{' on another process' * (there == here)}, "
            f"but it is being loaded into {here}: build the {what} it was saved from, "
            "or start without the state."
        )
    return state


def without_fingerprints(label: str) -> str:
    """A label as people read it: `over=` tells bins of time apart that no setting names."""
    return re.sub(r", over=\w+", "", label)


def pmf(sampler: TimestepSampler, process: NoiseProcess) -> Tensor:
    """The probability of every timestep [T] (of every thousandth, if time is continuous)."""
    return sampler.masses(edges(len(process.grid())))

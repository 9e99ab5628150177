"""The pacer: one object between a sampler and any training loop.

    draw, observe (once per micro-batch) -> before_update -> the optimizer steps -> after_update

It carries losses and probe signals to the sampler, over all workers, so that every rank holds the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from stepwell.catalogue import build
from stepwell.core.errors import InvalidParameter, StepwellError
from stepwell.core.feedback import Feedback
from stepwell.core.group import Alone, WorkerGroup
from stepwell.core.probe import NoProbe, Probe
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Metrics, State, TimestepSampler
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick
from stepwell.weightings import Weighting

LossAt = Callable[[Tensor, Tensor, PerExample, Any], PerExample]
"""(x0, noise, u, condition) -> the plain loss of each example, differentiable."""


class OutOfTurn(StepwellError, RuntimeError):
    """A call that the pacer cannot place: it says what has to come first."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The timesteps of one micro-batch, and what its losses are worth."""

    u: PerExample
    correction: PerExample
    process: NoiseProcess
    weighting: Weighting

    @property
    def timesteps(self) -> PerExample:
        """[B]: what the network is told."""
        return self.process.time(self.u)

    @property
    def weight(self) -> PerExample:
        """[B]: correction x weighting, the factor on the plain losses."""
        return self.correction * self.weighting(self.process, self.u)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The view that a probe gets: the micro-batch drawn last, and a way to its losses."""

    tick: Tick
    x0: Tensor
    condition: Any
    group: WorkerGroup
    loss: LossAt
    process: NoiseProcess
    weighting: Weighting
    weights: Callable[[], Iterable[Parameter]]

    def loss_at(self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        return self.loss(x0, noise, u, condition) * self.weighting(self.process, u)

    def parameters(self) -> Iterable[Parameter]:
        return self.weights()


def _unavailable(*_: Any) -> PerExample:
    raise OutOfTurn("this sampler measures losses itself: give the Pacer loss_at and parameters.")


class Pacer:
    """Sampler, weighting and probe of one training run, as objects or by the names of the catalogue."""

    def __init__(
        self,
        sampler: TimestepSampler | str,
        process: NoiseProcess | str | Any,
        weighting: Weighting | str = "none",
        *,
        probe: Probe | None = None,
        loss_at: LossAt = _unavailable,
        parameters: Callable[[], Iterable[Parameter]] = tuple,
        group: WorkerGroup | None = None,
    ) -> None:
        self.process = build.as_process(process)
        self.sampler = build.sampler(sampler, self.process) if isinstance(sampler, str) else sampler
        self.weighting: Weighting = build.weighting(weighting) if isinstance(weighting, str) else weighting
        self.probe: Probe = probe or NoProbe()
        self._loss_at, self._parameters = loss_at, parameters
        self._group: WorkerGroup = group or Alone()
        self._view: Surroundings | None = None
        self._drawn: list[tuple[PerExample, Tensor | None]] = []
        self._heard: list[PerExample] = []

    def draw(self, x0: Tensor, tick: Tick, condition: Any = None) -> Pace:
        """Timesteps for the next micro-batch."""
        if len(self._drawn) > len(self._heard) and self.sampler.learns:
            raise OutOfTurn("draw was called twice: observe the losses of the last draw first.")
        drawn = self.sampler.draw(x0, tick)
        self._drawn.append((drawn.u, drawn.action))
        self._view = Surroundings(
            tick, x0, condition, self._group, self._loss_at, self.process, self.weighting, self._parameters
        )
        return Pace(drawn.u, drawn.correction, self.process, self.weighting)

    def observe(self, plain: PerExample) -> None:
        """The plain losses of the micro-batch drawn last."""
        if len(self._heard) >= len(self._drawn):
            raise OutOfTurn("observe has nothing to belong to: call draw before it, once per micro-batch.")
        wanted = self._drawn[-1][0].shape
        if plain.shape != wanted:
            raise InvalidParameter(
                f"the losses must be one per example, {tuple(wanted)}, not {tuple(plain.shape)}: take the "
                "mean over each example only, as in (output - target).square().flatten(1).mean(1)."
            )
        self._heard.append(plain.detach())

    def before_update(self) -> None:
        """The gradients are ready and the optimizer is about to step."""
        self.probe.before(self._turn("before_update"))

    def after_update(self) -> Metrics:
        """The optimizer has stepped: measure, gather, learn."""
        view = self._turn("after_update")
        signal = self.probe.after(view)
        metrics: Metrics = {}
        if self.sampler.learns:
            if len(self._heard) < len(self._drawn):
                raise OutOfTurn("the sampler learns from losses: observe them before after_update.")
            u = torch.cat([drawn for drawn, _ in self._drawn])
            plain = torch.cat(self._heard).to(u.dtype)
            actions = [action for _, action in self._drawn if action is not None]
            weighted = plain * self.weighting(self.process, u)
            action = torch.cat(actions) if actions else None
            feedback = Feedback(view.tick, u, plain, weighted, action, signal)
            metrics = self.sampler.learn(feedback.gathered(self._group))
        self._view, self._drawn, self._heard = None, [], []
        return metrics

    def _turn(self, call: str) -> Surroundings:
        if self._view is None:
            raise OutOfTurn(f"{call} was called before any draw of this update.")
        return self._view

    def state_dict(self) -> State:
        """Everything that the next draw depends on, beside the tick."""
        return {"sampler": self.sampler.state_dict(), "probe": self.probe.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self.sampler.load_state_dict(state["sampler"])
        self.probe.load_state_dict(state["probe"])
        self._view, self._drawn, self._heard = None, [], []

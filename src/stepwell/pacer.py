"""The pacer: one object between a sampler and any training loop.

    draw, observe (once per micro-batch) -> before_update -> the optimizer steps -> after_update

It carries losses and probe signals to the sampler, over all workers, so that every rank holds the same one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.catalogue import build
from stepwell.core.errors import InvalidParameter, StepwellError
from stepwell.core.feedback import Feedback
from stepwell.core.group import Alone, WorkerGroup
from stepwell.core.probe import Probe
from stepwell.core.probe_spec import ProbeSpec
from stepwell.core.process import NoiseProcess
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick
from stepwell.probes import probe_for
from stepwell.probes.view import LossAt, Surroundings, Watched
from stepwell.weightings import Weighting


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


class Pacer:
    """Sampler, weighting and probe of one training run, as objects or by the names of the catalogue.

    Samplers that measure need `loss_at` (the plain losses of any examples at any times) and the `optimizer`;
    `network` lets them switch dropout off while they do.
    """

    def __init__(
        self,
        sampler: TimestepSampler | str,
        process: NoiseProcess | str | Any,
        weighting: Weighting | str = "none",
        *,
        loss_at: LossAt | None = None,
        optimizer: Any = None,
        network: nn.Module | None = None,
        group: WorkerGroup | None = None,
    ) -> None:
        self.process = build.as_process(process)
        self.sampler = build.sampler(sampler, self.process) if isinstance(sampler, str) else sampler
        self.weighting: Weighting = build.weighting(weighting) if isinstance(weighting, str) else weighting
        self.probe: Probe = probe_for(self.sampler.probe)
        self._group: WorkerGroup = group or Alone()
        self._watched: Watched | None = None
        if self.sampler.probe is not None:
            if loss_at is None or optimizer is None:
                raise InvalidParameter(
                    f"{self.sampler!r} measures losses itself: give the Pacer loss_at=, a function (x0, "
                    "noise, u, condition) -> losses [B] without weighting, and optimizer=."
                )
            self._watched = Watched(
                self.process, self.weighting, loss_at, optimizer, network, build.weighting_of
            )
            # A target that this process does not have is refused now, not at the first measurement.
            self._watched.weight(self.sampler.probe.target)
        self._spec: ProbeSpec | None = None
        self._metrics: Metrics = {}
        self.seconds = 0.0
        """What drawing, probing and learning took so far, as the host's clock sees it."""
        self._forget()

    def _forget(self) -> None:
        self._tick: Tick | None = None
        self._view: Surroundings | None = None
        self._drawn: list[Draw] = []
        self._heard: list[PerExample] = []

    def draw(self, x0: Tensor, tick: Tick, condition: Any = None) -> Pace:
        """Timesteps for the next micro-batch."""
        started = time.perf_counter()
        if len(self._drawn) > len(self._heard) and self._needs_losses:
            raise OutOfTurn("draw was called twice: observe the losses of the last draw first.")
        drawn = self.sampler.draw(x0, tick)
        self._drawn.append(drawn)
        self._tick = tick
        if self._watched is not None:
            self.probe.see(x0, condition, self.sampler.probe, self._group.world)
            self._view = Surroundings(tick, x0, condition, self._group, self._watched)
        self.seconds += time.perf_counter() - started
        return Pace(drawn.u, drawn.correction, self.process, self.weighting)

    @property
    def _needs_losses(self) -> bool:
        return self.sampler.learns and self.sampler.learns_from_losses

    def observe(self, plain: PerExample) -> None:
        """The plain losses of the micro-batch drawn last."""
        if len(self._heard) >= len(self._drawn):
            raise OutOfTurn("observe has nothing to belong to: call draw before it, once per micro-batch.")
        wanted = self._drawn[-1].u.shape
        if plain.shape != wanted:
            raise InvalidParameter(
                f"the losses must be one per example, {tuple(wanted)}, not {tuple(plain.shape)}: take the "
                "mean over each example only, as in (output - target).square().flatten(1).mean(1)."
            )
        self._heard.append(plain.detach())

    def before_update(self) -> None:
        """The gradients are ready and the optimizer is about to step."""
        tick = self._turn("before_update")
        spec = self.sampler.probe
        self._spec = spec if spec is not None and spec.due(tick.step) else None
        if self._spec is not None and self._view is not None:
            started = time.perf_counter()
            self.probe.before(self._view, self._spec)
            self.seconds += time.perf_counter() - started

    def after_update(self) -> Metrics:
        """The optimizer has stepped: measure, gather, learn. Returns the newest of every metric."""
        tick, started = self._turn("after_update"), time.perf_counter()
        signal = None
        if self._spec is not None and self._view is not None:
            signal = self.probe.after(self._view, self._spec)
        metrics: dict[str, Tensor] = {}
        if self._needs_losses or signal is not None:
            feedback = self._feedback(tick, signal)
            metrics |= self.sampler.learn(feedback.gathered(self._group))
        if self.sampler.reference is not None:
            correction = torch.cat([drawn.correction for drawn in self._drawn])
            metrics["effective_sample_share"] = correction.mean().square() / correction.square().mean()
        self._metrics = {**self._metrics, **metrics}
        self._forget()
        self.seconds += time.perf_counter() - started
        return self._metrics

    def _feedback(self, tick: Tick, signal: Any) -> Feedback:
        if self._needs_losses and len(self._heard) < len(self._drawn):
            raise OutOfTurn("the sampler learns from losses: observe them before after_update.")
        u = torch.cat([drawn.u for drawn in self._drawn])
        heard = len(self._heard) == len(self._drawn)
        plain = torch.cat(self._heard).to(u.dtype) if heard else torch.full_like(u, torch.nan)
        return Feedback(
            tick, u, plain, plain * self.weighting(self.process, u), self._drawn[-1].action, signal
        )

    def _turn(self, call: str) -> Tick:
        if self._tick is None:
            raise OutOfTurn(f"{call} was called before any draw of this update.")
        return self._tick

    def state_dict(self) -> State:
        """Everything that the next draw depends on, beside the tick, and the metrics heard last."""
        metrics = {name: value.clone() for name, value in self._metrics.items()}
        return {"sampler": self.sampler.state_dict(), "probe": self.probe.state_dict(), "metrics": metrics}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self.sampler.load_state_dict(state["sampler"])
        self.probe.load_state_dict(state["probe"])
        self._metrics = {name: value.clone() for name, value in state.get("metrics", {}).items()}
        self._forget()

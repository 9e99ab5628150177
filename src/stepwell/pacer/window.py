"""The error of calls in an order that has no meaning."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter, StepwellError
from stepwell.core.feedback import Feedback, Signal
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import WorkerGroup
from stepwell.core.sampler import Draw, State, TimestepSampler
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick
from stepwell.weightings import Weighting


class OutOfTurn(StepwellError, RuntimeError):
    """A call that the pacer cannot place: it says what has to come first."""


PATIENCE = 1024
"""Micro-batches without an update after which nobody believes in gradient accumulation any more."""


@dataclass
class Counter:
    """The place in a run: real updates so far, and micro-batches since the last one."""

    seed: int = 0
    step: int = 0
    micro: int = 0

    def tick(self, group: WorkerGroup) -> Tick:
        """The tick of the next micro-batch."""
        if self.micro >= PATIENCE:
            raise OutOfTurn(
                f"{PATIENCE} micro-batches were drawn and no update followed: attach the pacer to the "
                "optimizer that steps, pacer.attach(optimizer), or call before_update and after_update "
                "around each update (fused backward, DeepSpeed)."
            )
        return Tick(self.seed, self.step, self.micro, group.rank, group.world)

    def drew(self, tick: Tick) -> None:
        """Follow a tick, its own or the host's."""
        self.step, self.micro = tick.step, tick.micro + 1

    def updated(self) -> None:
        """The optimizer moved the parameters."""
        self.step, self.micro = self.step + 1, 0

    def state_dict(self) -> State:
        return asdict(self)

    def load_state_dict(self, state: State) -> None:
        self.seed, self.step, self.micro = (int(state[name]) for name in ("seed", "step", "micro"))


_ADD = "Add pacer.observe(losses), one plain loss per example, after the forward pass of each micro-batch."


@dataclass
class Window:
    """The micro-batches of one update; those of skipped updates belong to the next real one."""

    sampler: TimestepSampler
    tick: Tick | None = None
    """Of the micro-batch drawn last."""
    _drawn: list[Draw] = field(default_factory=list)
    _heard: list[PerExample] = field(default_factory=list)

    @property
    def needs_losses(self) -> bool:
        """Whether the sampler learns from the losses of every micro-batch."""
        return self.sampler.learns and self.sampler.learns_from_losses

    def require_room(self) -> None:
        """Whether another draw may come."""
        if len(self._drawn) > len(self._heard) and self.needs_losses:
            raise OutOfTurn(
                f"draw was called twice, but {self.sampler!r} learns from losses: observe the losses of the "
                f"last draw first. {_ADD}"
            )

    def add(self, drawn: Draw, tick: Tick) -> None:
        """One more micro-batch."""
        self._drawn.append(drawn)
        self.tick = tick

    def hear(self, plain: PerExample) -> None:
        """The losses of the micro-batch drawn last."""
        if len(self._heard) >= len(self._drawn):
            raise OutOfTurn("observe has nothing to belong to: call draw before it, once per micro-batch.")
        wanted = self._drawn[-1].u.shape
        if plain.shape != wanted:
            raise InvalidParameter(
                f"the losses must be one per example, {tuple(wanted)}, not {tuple(plain.shape)}: take the "
                "mean over each example only, as in (output - target).square().flatten(1).mean(1)."
            )
        self._heard.append(plain.detach())

    def turn(self, call: str) -> Tick:
        """The tick of a call that needs one."""
        if self.tick is None:
            raise OutOfTurn(f"{call} was called before any draw of this update.")
        return self.tick

    def feedback(self, process: NoiseProcess, weighting: Weighting, signal: Signal | None) -> Feedback:
        """Everything that this rank can tell of the update."""
        if self.needs_losses and len(self._heard) < len(self._drawn):
            raise OutOfTurn(f"{self.sampler!r} learns from losses: observe them before after_update. {_ADD}")
        u = torch.cat([drawn.u for drawn in self._drawn])
        heard = len(self._heard) == len(self._drawn)
        plain = torch.cat(self._heard).to(u.dtype) if heard else torch.full_like(u, torch.nan)
        tick, weighted = self.turn("after_update"), plain * weighting(process, u)
        return Feedback(tick, u, plain, weighted, self._drawn[-1].action, signal)

    def effective_share(self) -> Tensor:
        """How many of the draws their corrections leave (Kish's effective sample size), as a share."""
        correction = torch.cat([drawn.correction for drawn in self._drawn])
        return correction.mean().square() / correction.square().mean()

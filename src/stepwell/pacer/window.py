"""The micro-batches since the last update: what was drawn, their losses, and the place in the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from stepwell.core import saved_state
from stepwell.core.errors import InvalidParameter, StepwellError
from stepwell.core.feedback import Feedback, Signal
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import WorkerGroup
from stepwell.core.sampler import Draw, State, TimestepSampler
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick
from stepwell.weightings import LearnedWeighting, Unweighted, Weighting

MAX_MICRO_BATCHES = 1024
"""Micro-batches without an update: the limit before a missing attach is reported."""

_ADD_OBSERVE = (
    "Add pacer.observe(losses), one plain loss per example, after the forward pass of each micro-batch."
)


class CallOrderError(StepwellError, RuntimeError):
    """A call of the pacer in the wrong order; the message says what has to come first."""


@dataclass
class Counter:
    """The place in a run: updates so far, and micro-batches since the last one."""

    seed: int = 0
    step: int = 0
    micro: int = 0

    def tick(self, group: WorkerGroup) -> Tick:
        """The tick of the next micro-batch."""
        if self.micro >= MAX_MICRO_BATCHES:
            raise CallOrderError(
                f"{MAX_MICRO_BATCHES} micro-batches were drawn and no update followed: attach the pacer to "
                "the optimizer that steps, pacer.attach(optimizer), or call before_update and after_update "
                "around each update (fused backward, DeepSpeed)."
            )
        return Tick(self.seed, self.step, self.micro, group.rank, group.world)

    def next_micro_batch(self, tick: Tick) -> None:
        """A micro-batch was drawn at this tick, the counter's own or the host's."""
        self.step, self.micro = tick.step, tick.micro + 1

    def next_update(self) -> None:
        """The optimizer moved the parameters."""
        self.step, self.micro = self.step + 1, 0

    def state_dict(self) -> State:
        return asdict(self)

    def load_state_dict(self, state: State) -> None:
        step, micro = (saved_state.count(state, name, "the pacer's counter") for name in ("step", "micro"))
        self.seed, self.step, self.micro = int(state.get("seed", self.seed)), step, micro


@dataclass
class Window:
    """Draws and losses of one update; those of a skipped update belong to the next one."""

    sampler: TimestepSampler
    weighting: Weighting
    tick: Tick | None = None
    """Tick of the micro-batch drawn last; None before the first."""
    _draws: list[Draw] = field(default_factory=list)
    _losses: list[PerExample] = field(default_factory=list)

    @property
    def sampler_needs_losses(self) -> bool:
        """Whether the sampler learns from the losses of every micro-batch."""
        return self.sampler.learns and self.sampler.learns_from_losses

    @property
    def lacks_losses(self) -> bool:
        """Whether sampler or weighting learn from losses, and those of the last draw did not come."""
        learns = self.sampler_needs_losses or isinstance(self.weighting, LearnedWeighting)
        return learns and len(self._losses) < len(self._draws)

    def require_losses(self, call: str) -> None:
        """Refuse a call while a sampler or weighting that learns from losses lacks those of the last draw."""
        if self.lacks_losses:
            learner = self.sampler if self.sampler_needs_losses else self.weighting
            raise CallOrderError(
                f"{call} came before the losses of the last draw, which {learner} learns from. {_ADD_OBSERVE}"
            )

    def require_draw(self, call: str) -> None:
        """Refuse a call that has no draw to belong to."""
        if self.tick is None:
            raise CallOrderError(f"{call} was called before any draw of this update: call draw first.")

    def forget_failed(self) -> None:
        """Drop the last draw if its losses did not come: its forward pass failed, and the host goes on."""
        if self.lacks_losses:
            self._draws.pop()
            # Without any draw left, an update is not ours.
            self.tick = self.tick if self._draws else None

    def add_draw(self, draw: Draw, tick: Tick) -> None:
        """One more micro-batch."""
        self._draws.append(draw)
        self.tick = tick

    @property
    def last_u(self) -> PerExample:
        """The unit times [B] of the micro-batch drawn last."""
        return self._draws[-1].u

    @property
    def examples(self) -> int:
        """Examples of this rank since the last update."""
        return sum(len(draw.u) for draw in self._draws)

    def add_losses(self, plain: PerExample) -> None:
        """The plain losses [B] of the micro-batch drawn last."""
        if len(self._losses) >= len(self._draws):
            raise CallOrderError("observe was called without a draw: call draw first, once per micro-batch.")
        expected = self._draws[-1].u.shape
        if not isinstance(plain, Tensor) or plain.shape != expected:
            given = tuple(plain.shape) if isinstance(plain, Tensor) else f"a {type(plain).__name__}"
            raise InvalidParameter(
                f"the losses must be one per example, {tuple(expected)}, not {given}: take the mean over "
                "each example only, as in (output - target).square().flatten(1).mean(1)."
            )
        self._losses.append(plain.detach())

    def feedback(self, process: NoiseProcess, signal: Signal | None) -> Feedback:
        """What this rank reports of the update; losses are NaN if the host observed none."""
        assert self.tick is not None
        u = _joined([draw.u for draw in self._draws])
        complete = len(self._losses) == len(self._draws)
        # A copy: compiled losses may live in memory that the next step writes to.
        plain = torch.cat(self._losses).to(u.dtype) if complete else torch.full_like(u, torch.nan)
        weighted = plain if isinstance(self.weighting, Unweighted) else plain * self.weighting(process, u)
        return Feedback(self.tick, u, plain, weighted, self._draws[-1].action, signal)

    def effective_share(self) -> Tensor:
        """Kish's effective sample size under the corrections, as a share of the draws."""
        correction = _joined([draw.correction for draw in self._draws])
        return correction.mean().square() / correction.square().mean()


def _joined(batches: list[PerExample]) -> PerExample:
    """One tensor of all micro-batches; the only one as it is."""
    return batches[0] if len(batches) == 1 else torch.cat(batches)

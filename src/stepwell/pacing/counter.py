"""A count of updates and micro-batches, for hosts that have no tick to give."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from stepwell.core.group import WorkerGroup
from stepwell.core.sampler import State
from stepwell.core.tick import Tick
from stepwell.pacing.out_of_turn import OutOfTurn

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

"""The probe: it measures what an update does, and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor
from torch.nn import Parameter

from stepwell.core.feedback import Signal
from stepwell.core.group import WorkerGroup
from stepwell.core.sampler import State
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick


class View(Protocol):
    """What a probe may see of the training it measures."""

    @property
    def tick(self) -> Tick: ...
    @property
    def x0(self) -> Tensor: ...
    @property
    def condition(self) -> Any: ...
    @property
    def group(self) -> WorkerGroup: ...
    def loss_at(self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        """The weighted losses of examples at chosen times, differentiable."""
        ...

    def parameters(self) -> Iterable[Parameter]:
        """What the optimizer moves."""
        ...


class Probe(Protocol):
    """Measures around one update, at the steps its spec names."""

    def before(self, view: View) -> None:
        """Called with the gradients ready and the parameters not moved yet."""
        ...

    def after(self, view: View) -> Signal | None:
        """Called once the parameters moved: what was measured, if anything."""
        ...

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class NoProbe:
    """Measures nothing, and costs nothing."""

    def before(self, view: View) -> None:
        return

    def after(self, view: View) -> Signal | None:
        return None

    def state_dict(self) -> State:
        return {"kind": "no probe"}

    def load_state_dict(self, state: State) -> None:
        return

"""The probe: it measures what an update does, and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor
from torch.nn import Parameter

from stepwell.core.density import Density
from stepwell.core.feedback import Signal
from stepwell.core.group import WorkerGroup
from stepwell.core.sampler import State
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick


class View(Protocol):
    """What a probe may see of the training it measures."""

    @property
    def tick(self) -> Tick:
        """Of the micro-batch drawn last."""
        ...

    @property
    def x0(self) -> Tensor:
        """[B, ...]: the examples of the micro-batch drawn last."""
        ...

    @property
    def condition(self) -> Any: ...
    @property
    def group(self) -> WorkerGroup: ...
    @property
    def reference(self) -> Density:
        """The density that the objective is stated against."""
        ...

    def loss_at(
        self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any, target: str | None = None
    ) -> PerExample:
        """The losses of examples at chosen times, differentiable.

        They are weighted as training weights them, or with the weighting that `target` names.
        """
        ...

    def parameters(self) -> Sequence[Parameter]:
        """What the optimizer moves."""
        ...

    def scale(self, parameter: Parameter) -> Tensor | None:
        """The diagonal of the optimizer's preconditioner; None: the identity."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """The network in eval mode, as it was afterwards."""
        ...


class Probe(Protocol):
    """Measures around one update; called at the steps its spec names, by every rank.

    The spec comes with every call: a sampler may ask for other times as it learns.
    """

    def see(self, x0: Tensor, condition: Any, spec: Any, world: int) -> None:
        """Every micro-batch, so that small ones can be pooled."""
        ...

    def before(self, view: View, spec: Any) -> None:
        """Called with the gradients ready and the parameters not moved yet."""
        ...

    def after(self, view: View, spec: Any) -> Signal | None:
        """Called once the parameters moved: what was measured, equal on every rank."""
        ...

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class NoProbe:
    """Measures nothing, and costs nothing."""

    def see(self, x0: Tensor, condition: Any, spec: Any, world: int) -> None:
        return

    def before(self, view: View, spec: Any) -> None:
        return

    def after(self, view: View, spec: Any) -> Signal | None:
        return None

    def state_dict(self) -> State:
        return {"kind": "no probe"}

    def load_state_dict(self, state: State) -> None:
        return

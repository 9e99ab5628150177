"""What can be measured around an update: the decrease of the loss, and gradients per stratum of time."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from stepwell.core.feedback import Signal
from stepwell.core.probe import DecreaseSpec, GradientSpec, ProbeSpec
from stepwell.core.tensors import State
from stepwell.probes.context import ProbeContext
from stepwell.probes.decrease import Decrease
from stepwell.probes.gradients import Gradients


class Probe(Protocol):
    """Measures around an update, on every rank, at the steps that its spec names.

    The spec comes with every call: a sampler may ask for other times as it learns.
    """

    def add_batch(self, x0: Tensor, condition: Any, spec: Any, world: int) -> None:
        """Called with every micro-batch, so that small ones can be pooled."""
        ...

    def before(self, context: ProbeContext, spec: Any) -> None:
        """Called when gradients are ready and the parameters have not moved yet."""
        ...

    def after(self, context: ProbeContext, spec: Any) -> Signal | None:
        """Called after the parameters moved: the measurement, equal on every rank."""
        ...

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class NoProbe:
    """Measures nothing."""

    def add_batch(self, x0: Tensor, condition: Any, spec: Any, world: int) -> None:
        return

    def before(self, context: ProbeContext, spec: Any) -> None:
        return

    def after(self, context: ProbeContext, spec: Any) -> Signal | None:
        return None

    def state_dict(self) -> State:
        return {"kind": "no probe"}

    def load_state_dict(self, state: State) -> None:
        return


def probe_for(spec: ProbeSpec | None) -> Probe:
    """The probe that measures what a sampler asks for."""
    if isinstance(spec, GradientSpec):
        return Gradients()
    if isinstance(spec, DecreaseSpec):
        return Decrease()
    return NoProbe()

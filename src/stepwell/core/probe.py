"""What a sampler may ask to be measured, and how often: the sampler owns these numbers, nobody else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

from torch import Tensor
from torch.nn import Parameter

from stepwell.core import require
from stepwell.core.density import Density
from stepwell.core.errors import InvalidParameter
from stepwell.core.feedback import Signal
from stepwell.core.ranks import WorkerGroup
from stepwell.core.tensors import PerExample, State
from stepwell.core.tick import Tick

Times = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProbeSpec(ABC):
    """What every probe has: a rhythm and an objective."""

    every_steps: int
    target: str | None = None
    """The weighting whose objective counts, as NAME or NAME:key=value,...; None: the one that is trained."""

    def __post_init__(self) -> None:
        require.count("every_steps", self.every_steps)
        if self.target is not None and not (isinstance(self.target, str) and self.target):
            raise InvalidParameter(
                "target must name a weighting, such as 'vlb', or be None for the one that is trained, "
                f"not {self.target!r}."
            )

    def due(self, step: int) -> bool:
        """Whether to measure at this step: from the counter alone, so that all ranks agree."""
        return (step + 1) % self.every_steps == 0

    @abstractmethod
    def mapped(self, outside: Callable[[Times], Times]) -> Any:
        """The same measurement with its times seen from outside a warp of unit time."""


@dataclass(frozen=True, slots=True)
class GradientSpec(ProbeSpec):
    """Gradients of strata between `borders` of unit time, one stratum at a time, round-robin."""

    borders: Times = ()
    images: int = 16
    """Examples in each of the two halves, over all ranks."""
    preconditioned: bool = True
    """Whether gradients are measured in the metric of Adam's preconditioner."""
    contrast: bool = False
    """Only the difference of the halves is needed: one pass instead of two, and the second half is 0."""
    hurried_rounds: int = 1
    """Rounds over all strata that come four times as fast: those without which nothing is known."""

    def __post_init__(self) -> None:
        ProbeSpec.__post_init__(self)
        require.count("images", self.images)
        require.count("hurried_rounds", self.hurried_rounds)
        rising = all(a < b for a, b in pairwise(self.borders))
        if len(self.borders) < 2 or not rising or self.borders[0] < 0 or self.borders[-1] > 1:
            raise InvalidParameter("a gradient probe needs at least 2 borders that rise, within [0, 1].")

    @property
    def strata(self) -> int:
        """How many there are."""
        return len(self.borders) - 1

    def due(self, step: int) -> bool:
        """Faster at first: until the first rounds are over, nothing is known."""
        done = step + 1 - self._hurried_steps
        return (step + 1) % self._hurry == 0 if done <= 0 else done % self.every_steps == 0

    def stratum(self, step: int) -> int:
        """The stratum whose turn it is at a step that is due."""
        done = step + 1 - self._hurried_steps
        turn = (step + 1) // self._hurry if done <= 0 else done // self.every_steps
        return (turn - 1) % self.strata

    @property
    def _hurry(self) -> int:
        return max(1, self.every_steps // 4)

    @property
    def _hurried_steps(self) -> int:
        return self._hurry * self.strata * self.hurried_rounds

    def mapped(self, outside: Callable[[Times], Times]) -> GradientSpec:
        return replace(self, borders=outside(self.borders))


@dataclass(frozen=True, slots=True)
class DecreaseSpec(ProbeSpec):
    """The fall of the loss over one update (Kim et al. 2025, Algorithm 2).

    A row for one example at the times `grid`, and the rewards of every example at the times `subset`.
    """

    subset: Times = ()
    grid: Times = ()
    fresh_noise: bool = False
    """New noise after the update, as the official code has it: the difference is then mostly noise."""
    train_mode: bool = False
    """Dropout stays on while measuring, as in the official code."""

    def __post_init__(self) -> None:
        ProbeSpec.__post_init__(self)
        if not self.subset or any(not 0 <= u < 1 for u in self.subset + self.grid):
            raise InvalidParameter("a decrease probe needs a subset of at least 1 time, all in [0, 1).")

    def mapped(self, outside: Callable[[Times], Times]) -> DecreaseSpec:
        return replace(self, subset=outside(self.subset), grid=outside(self.grid))


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

"""Samplers with one density for all examples: `Static` ones keep it, a `Learner` changes it as it learns."""

from __future__ import annotations

from abc import abstractmethod
from hashlib import blake2b

import torch
from torch import Tensor

from stepwell.core import saved_state
from stepwell.core.density import Density
from stepwell.core.feedback import Feedback
from stepwell.core.sampler import Draw, Metrics, State, TimestepSampler, require_kind
from stepwell.core.tensors import PerExample
from stepwell.core.tick import Tick


class OneDensity(TimestepSampler):
    """Draws from `current`. States are saved under `label` and load only into a sampler of the same one."""

    label: str

    @property
    @abstractmethod
    def current(self) -> Density:
        """The density of the next draw."""

    def __repr__(self) -> str:
        return self.label

    def from_uniform(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        u, density = self.current.drawn(v)
        return Draw(u, density.log(), torch.ones_like(u))

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self.current.pdf(u)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self.current.cdf(u)

    def masses(self, borders: Tensor) -> Tensor:
        return self.current.masses(borders)


class Static(OneDensity):
    """A density that never changes."""

    def __init__(self, density: Density, label: str) -> None:
        self._density, self.label = density, label

    @property
    def current(self) -> Density:
        return self._density

    def learn(self, feedback: Feedback) -> Metrics:
        return {}

    def state_dict(self) -> State:
        return {"kind": self.label}

    def load_state_dict(self, state: State) -> None:
        require_kind(state, self.label)


class Learner(OneDensity):
    """A density made of running statistics: `_NAME` for each NAME of `statistics`, saved under that name."""

    learns = True
    statistics: tuple[str, ...]
    constants: tuple[str, ...] = ()
    """Tensors that the density needs beside them, on the same device."""

    _density: Density | None = None

    @property
    def current(self) -> Density:
        # Built when it is asked for: several updates may pass between two draws.
        if self._density is None:
            self._density = self._build()
        return self._density

    @abstractmethod
    def _build(self) -> Density:
        """The density that the statistics make; `learn` sets `_density` to None when they change."""

    def _move(self, device: torch.device) -> None:
        for name in (*self.statistics, *self.constants):
            setattr(self, f"_{name}", getattr(self, f"_{name}").to(device))

    def state_dict(self) -> State:
        return {"kind": self.label, **{name: getattr(self, f"_{name}").clone() for name in self.statistics}}

    def load_state_dict(self, state: State) -> None:
        require_kind(state, self.label)
        shapes = {name: self._shape(name) for name in self.statistics}
        read = {name: saved_state.tensor(state, name, self, shape) for name, shape in shapes.items()}
        for name, value in read.items():
            setattr(self, f"_{name}", value.to(getattr(self, f"_{name}")))
        self._density = None

    def _shape(self, statistic: str) -> tuple[int | None, ...]:
        """The shape of a statistic; None for a size that follows what is measured."""
        return tuple(getattr(self, f"_{statistic}").shape)


def fingerprint(*tensors: Tensor) -> str:
    """A short hash of the numbers that a density is made of."""
    content = " ".join(str(tensor.tolist()) for tensor in tensors)
    return blake2b(content.encode(), digest_size=6).hexdigest()

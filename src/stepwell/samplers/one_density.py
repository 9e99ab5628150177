"""A sampler whose draws are one density's at any moment, the same for every example."""

from __future__ import annotations

from abc import abstractmethod
from hashlib import blake2b

import torch
from torch import Tensor

from stepwell.core.density import Density
from stepwell.core.sampler import Draw, TimestepSampler
from stepwell.core.shapes import PerExample
from stepwell.core.tick import Tick


def fingerprint(*tensors: Tensor) -> str:
    """A short name for the numbers that a density is made of."""
    content = " ".join(str(tensor.tolist()) for tensor in tensors)
    return blake2b(content.encode(), digest_size=6).hexdigest()


class OneDensity(TimestepSampler):
    """Static samplers keep `current`; learners replace it. `label` guards the state dict."""

    label: str

    @property
    @abstractmethod
    def current(self) -> Density:
        """The density of the next draw."""

    def __repr__(self) -> str:
        return self.label

    def place(self, v: PerExample, x0: Tensor, tick: Tick) -> Draw:
        u = self.current.quantile(v)
        return Draw(u, self.current.pdf(u).log(), torch.ones_like(u))

    def density(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self.current.pdf(u)

    def cdf(self, u: Tensor, x0: Tensor | None = None) -> Tensor:
        return self.current.cdf(u)

    def masses(self, borders: Tensor) -> Tensor:
        return self.current.masses(borders)

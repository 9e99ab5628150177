"""What training minimises: a process, a weighting, and the density it is stated against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepwell.core.density import Density
from stepwell.core.process import NoiseProcess
from stepwell.core.shapes import PerExample
from stepwell.weightings import Unweighted, Weighting

Denoiser = Callable[[Tensor, PerExample, Any], Tensor]
"""(input, time, condition) -> output: any network, wrapped."""


class Losses(NamedTuple):
    """One value per example; `extra` (a learned-variance term) is never re-weighted."""

    plain: PerExample
    weighted: PerExample
    extra: PerExample


@dataclass(frozen=True)
class Objective:
    """The expectation over u ~ reference of weighting x squared error on the process's own target."""

    process: NoiseProcess
    weighting: Weighting = field(default_factory=Unweighted)

    @property
    def reference(self) -> Density:
        """The density over u that the expectation is stated against."""
        return self.process.reference

    def __call__(
        self, denoiser: Denoiser, x0: Tensor, noise: Tensor, u: PerExample, condition: Any = None
    ) -> Losses:
        """The losses of examples x0 [B, ...] at times u [B], in float32 or better."""
        problem = self.process.corrupt(x0, noise, u)
        output = denoiser(problem.input, problem.time, condition)
        error = output.to(u.dtype) - problem.target.to(u.dtype)
        plain = error.square().reshape(len(x0), -1).mean(1)
        return Losses(plain, plain * self.weighting(self.process, u), torch.zeros_like(plain))

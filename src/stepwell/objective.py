"""The training objective: the weighted squared error of a process's target, averaged over time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepwell.bound import learned_variance_bound
from stepwell.core.density import Density
from stepwell.core.errors import InvalidParameter
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample
from stepwell.weightings import Unweighted, Weighting

DenoiserFn = Callable[[Tensor, PerExample, Any], Tensor]
"""(input, time, condition) -> output: any network, wrapped."""


class Losses(NamedTuple):
    """One value per example [B]."""

    plain: PerExample
    """The squared error on the network's own target."""
    weighted: PerExample
    extra: PerExample
    """The term of a learned variance, which no weighting changes; 0 without one."""

    @property
    def total(self) -> PerExample:
        """The whole loss, which a sampler's correction multiplies: all terms have the same timesteps."""
        return self.weighted + self.extra


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
        self, denoiser: DenoiserFn, x0: Tensor, noise: Tensor, u: PerExample, condition: Any = None
    ) -> Losses:
        """The losses of examples x0 [B, ...] at times u [B], in float32 or better."""
        problem = self.process.corrupt(x0, noise, u)
        output = denoiser(problem.input, problem.time, condition).to(u.dtype)
        prediction, extra = self._split(output, x0, problem.xt, u)
        plain = (prediction - problem.target.to(u.dtype)).square().reshape(len(x0), -1).mean(1)
        return Losses(plain, plain * self.weighting(self.process, u), extra)

    def _split(self, output: Tensor, x0: Tensor, xt: Tensor, u: PerExample) -> tuple[Tensor, PerExample]:
        """The prediction, and the term of a learned variance if the output has one (twice the channels)."""
        prediction, fraction = split_output(output, x0)
        if fraction is None:
            return prediction, torch.zeros_like(u)
        if not self.process.is_ddpm:
            raise InvalidParameter(
                f"the network's output has twice the channels of its examples, for a learned variance, which "
                f"{self.process} does not have: use a discrete process (linear, cosine, ...), or a network "
                "with as many channels as its input."
            )
        nats = learned_variance_bound(self.process, x0, xt, prediction.detach(), fraction, u)
        # 0.001 x T x bits per dimension, as improved DDPM's hybrid loss (Nichol and Dhariwal 2021, Eq. 16).
        scale = len(self.process.grid()) / 1000 / (math.log(2) * x0[0].numel())
        return prediction, (nats * scale).to(u.dtype)


def split_output(output: Tensor, x0: Tensor) -> tuple[Tensor, Tensor | None]:
    """The prediction for x0 [B, C, ...], and a learned variance's fraction if the output has 2 C channels."""
    if output.shape == x0.shape:
        return output, None
    if x0.dim() > 1 and output.shape == (len(x0), 2 * x0.shape[1], *x0.shape[2:]):
        prediction, fraction = output.chunk(2, dim=1)
        return prediction, fraction
    raise InvalidParameter(
        f"the network's output is {tuple(output.shape)} for examples of {tuple(x0.shape)}: it must be as "
        "large, or have twice the channels if it learns a variance."
    )

"""Sketches of gradients: a few thousand numbers whose inner products are those of the gradients.

Every coordinate gets a random sign and is added to one of d buckets (Charikar et al. 2002; as a projection,
Weinberger et al. 2009). Inner products are kept in expectation, with an error of |x||y| sqrt(2 / d) at most,
and exactly if there are no more coordinates than buckets. A sketch is linear: the mean of the ranks' sketches
is the sketch of the mean gradient, and the sum over shards that of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from stepwell.core.errors import Unsupported
from stepwell.core.random import stream_key, uniforms
from stepwell.probes.sharded import held, local

DIMENSIONS = 4093
"""A multiple of what the noise of a few dozen examples leaves to see: more buckets change nothing.

Coordinates take the buckets in turn. A prime number of them keeps the column of a matrix, where one input
stands out, from falling into a few: of 4096 and for 1024 inputs it would be 4, with an error of a half.
"""


class Sketch:
    """The signs and places of one list of parameters, made once (a byte per coordinate)."""

    def __init__(self, parameters: Sequence[Parameter], dimensions: int = DIMENSIONS) -> None:
        self._dimensions = dimensions
        self._signs: list[Tensor] = []
        self._first: list[int] = []
        total = 0
        for number, parameter in enumerate(parameters):
            low, high = held(parameter)
            here = local(parameter)
            chance = uniforms(stream_key("sketch", number), parameter.numel(), here.device)[low:high]
            self._signs.append(torch.where(chance < 0.5, -1, 1).to(torch.int8))
            self._first.append((total + low) % dimensions)
            total += parameter.numel()
        self.width = min(total, dimensions)
        """Buckets in use: all, unless there are fewer coordinates."""

    def fits(self, parameters: Sequence[Parameter]) -> bool:
        """Whether it was made for as many parameters: some may have been frozen or thawed since."""
        return len(parameters) == len(self._signs)

    def __call__(self, gradients: Iterable[Tensor | None]) -> Tensor:
        """The sketch [width] of gradients, one for each parameter in order; None is 0."""
        result: Tensor | None = None
        for gradient, signs, first in zip(gradients, self._signs, self._first, strict=True):
            folded = signs.new_zeros(self._dimensions, dtype=torch.float32)
            if gradient is not None and signs.numel():
                signed = local(gradient).detach().float().reshape(-1) * signs
                last = -(first + signed.numel()) % self._dimensions
                padded = torch.nn.functional.pad(signed, (first, last))
                folded = padded.view(-1, self._dimensions).sum(0)
            result = folded if result is None else result + folded
        if result is None:
            raise Unsupported("there is nothing to train: no parameter requires a gradient.")
        return result[: self.width]

"""A moving average of the weights: the model that is evaluated and kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Parameter

from stepwell.core import require
from stepwell.core.errors import StepwellError
from stepwell.models.lora import is_adapter
from stepwell.probes.gradients import local


class BadAverages(StepwellError, ValueError):
    """Averages that are not those of a checkpoint's weights."""


KINDS = ("constant", "power")


def averaged_weights(model: Mapping[str, Tensor], average: Sequence[Tensor]) -> dict[str, Tensor]:
    """A checkpoint's weights with their averages in place: of the adapters only, if it has any."""
    names = [name for name in model if is_adapter(name)] or list(model)
    shapes = [[tuple(tensor.shape) for tensor in part] for part in ((model[name] for name in names), average)]
    if shapes[0] != shapes[1]:
        raise BadAverages(
            "it does not have one average for each of its tensors, of the same shape: it is damaged, or "
            "something else than training wrote it. Use an earlier checkpoint."
        )
    return {**model, **dict(zip(names, average, strict=True))}


class Ema:
    """Constant decay with DDPM's ramp, min(d, (1 + n) / (10 + n)), or EDM2's power function.

    The power profile with exponent g averages over a fixed share of training, whatever its length:
    its decay is (1 - 1/n)^(g + 1) (Karras et al. 2024, Eq. 127).
    """

    def __init__(self, parameters: Iterable[Parameter], decay: float, kind: str = "constant") -> None:
        self._kind = require.one_of("ema_kind", kind, KINDS)
        limit = 1.0 if kind == "constant" else 1e4
        self._decay = require.between("ema", decay, 0, limit)
        self._parameters: list[Tensor] = [p for p in parameters if p.requires_grad]
        self.average = [p.detach().clone() for p in self._parameters]

    def decay(self, step: int) -> float:
        """The weight of the past at the update after `step` earlier ones."""
        if self._kind == "power":
            return float((1 - 1 / (step + 1)) ** (self._decay + 1))
        return min(self._decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def step(self, step: int) -> None:
        """Take in the weights after an update."""
        torch._foreach_lerp_(_held(self.average), _held(self._parameters), 1 - self.decay(step))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with averaged weights; its own come back bit for bit."""
        with torch.no_grad():
            own = [p.detach().clone() for p in self._parameters]
            torch._foreach_copy_(_held(self._parameters), _held(self.average))
            try:
                yield
            finally:
                torch._foreach_copy_(_held(self._parameters), _held(own))

    def load(self, average: list[Tensor]) -> None:
        """Continue from a checkpoint."""
        mine = _held(self.average)
        torch._foreach_copy_(mine, [tensor.to(own) for tensor, own in zip(_held(average), mine, strict=True)])


def _held(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What this rank holds of each, in place: with sharding, parts that are averaged by themselves."""
    return [local(tensor.detach()) for tensor in tensors]

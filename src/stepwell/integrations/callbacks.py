"""Hosts that ask for times by the number of examples, where a pacer may need the examples themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.pacer import OutOfTurn, Pacer


def examples(pacer: Pacer, batch: int | Sequence[int] | Tensor, device: object, call: str) -> Tensor:
    """x0 [B, ...] if it was given; for samplers that look at no example, their number as [B, 0]."""
    if isinstance(batch, Tensor):
        return batch
    shape = [batch] if isinstance(batch, int) else list(batch)
    if len(shape) != 1:
        raise InvalidParameter(f"one time is drawn for each example, [B], not for a shape of {shape}.")
    count = shape[0]
    if pacer.sampler.probe is not None:
        raise InvalidParameter(
            f"{pacer.sampler!r} measures on the examples, and a number of them was given ({count}): "
            f"write {call}, with the clean batch in the place of its size."
        )
    return torch.empty(count, 0, device=torch.device("cpu" if device is None else str(device)))


def require_pacer(given: Any, call: str) -> Pacer:
    """`given`, if it is a Pacer."""
    if not isinstance(given, Pacer):
        raise InvalidParameter(
            f"{call} needs a stepwell.Pacer, not {type(given).__name__}: write pacer = stepwell.Pacer("
            '"neyman", noise_scheduler, loss_at=...) and give it to the callback and to the code that draws.'
        )
    return given


def require_draws(pacer: Pacer, before: int, where: str) -> None:
    """Whether training draws from the pacer: it did `before` times when it began."""
    if pacer.draws <= before:
        raise OutOfTurn(
            f"a batch was trained and the pacer drew nothing: in {where}, take timesteps from "
            "pace = pacer.draw(x0) and multiply the losses by pace.weight. Use the pacer that the callback "
            "has, not a second one."
        )

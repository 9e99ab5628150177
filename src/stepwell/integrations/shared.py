"""What several integrations share: batches given by their size, checks of the pacer, metrics for loggers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.pacer import CallOrderError, Pacer
from stepwell.processes.flow import FlowProcess


def as_examples(pacer: Pacer, batch: int | Sequence[int] | Tensor, device: object, call: str) -> Tensor:
    """x0 [B, ...] if it was given; else, for samplers without a probe, [B, 0] for a number of examples."""
    if isinstance(batch, Tensor):
        return batch
    shape = [batch] if isinstance(batch, int) else list(batch)
    if len(shape) != 1:
        raise InvalidParameter(f"one time is drawn for each example, [B], not for a shape of {shape}.")
    require_no_probe(pacer, call)
    return torch.empty(shape[0], 0, device=torch.device("cpu" if device is None else str(device)))


def require_no_probe(pacer: Pacer, call: str) -> None:
    """Refuse samplers that measure on examples where only their number is known."""
    if pacer.sampler.probe is not None:
        raise InvalidParameter(
            f"{pacer.sampler} measures on the examples, and only their number is given here: write {call}, "
            "with the clean batch in the place of its size."
        )


def require_pacer(pacer: Any, call: str) -> Pacer:
    """Refuse anything but a Pacer."""
    if not isinstance(pacer, Pacer):
        raise InvalidParameter(
            f"{call} needs a stepwell.Pacer, not {type(pacer).__name__}: write pacer = stepwell.Pacer("
            '"neyman", noise_scheduler, loss_at=...) and use it here and where timesteps are drawn.'
        )
    return pacer


def require_draws(pacer: Pacer, before: int, where: str) -> None:
    """Refuse training that does not draw from the pacer, which had made `before` draws at its start."""
    if pacer.draws <= before:
        raise CallOrderError(
            f"a batch was trained without a draw from the pacer: in {where}, take timesteps from "
            "pace = pacer.draw(x0) and multiply the losses by pace.weight, with the pacer that the callback "
            "has, not a second one."
        )


def logged_metrics(pacer: Pacer) -> dict[str, float]:
    """The pacer's scalar metrics as stepwell/NAME, for a framework's loggers."""
    return {f"stepwell/{name}": one.item() for name, one in pacer.metrics.items() if one.numel() == 1}


def require_flow(pacer: Any, call: str) -> Pacer:
    """Refuse a pacer whose times are not shares of noise on a straight line from data to noise."""
    process = require_pacer(pacer, call).process
    if not isinstance(process, FlowProcess):
        raise InvalidParameter(
            f"{call} is for flow matching, and the Pacer was made for {process}: make it for a flow, as in "
            'stepwell.Pacer("auto", "flow"), with the shift and reference density that you train with.'
        )
    return pacer  # type: ignore[no-any-return]

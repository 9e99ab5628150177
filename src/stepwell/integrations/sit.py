"""SiT's Transport (Ma et al. 2024): time runs from noise (0) to data (1), and is drawn inside its loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.tensors import PerExample
from stepwell.loss_at import ReadyLoss, arguments, bare
from stepwell.pacer import Pacer
from stepwell.processes.flow import FlowProcess


def process_of(transport: Any) -> FlowProcess:
    """The flow of a Transport with a linear path; unit time is 1 - t."""
    path = type(transport.path_sampler).__name__
    if path != "ICPlan":
        raise Unsupported(
            f"this Transport has the path {path}: a process is known for the linear one only. Make it with "
            "create_transport(path_type='Linear'), or draw from a sampler of your own process."
        )
    model, weight = transport.model_type.name, transport.loss_type.name
    # (drift / sigma)^2 on a noise or score loss makes it the loss of the velocity.
    if model == "VELOCITY" or weight == "VELOCITY":
        return FlowProcess("velocity", time_scale=1.0)
    if weight == "NONE":
        return FlowProcess("eps", time_scale=1.0)
    raise Unsupported(
        f"this Transport weights its {model.lower()} loss by {weight.lower()}, which no process here has for "
        "its own: use loss_weight=None or 'velocity', and give the Pacer weighting='likelihood'."
    )


def loss_at(transport: Any, network: nn.Module) -> ReadyLoss:
    """The "loss" of `transport.training_losses` at chosen times; a tensor as condition is the label y."""
    process, called = process_of(transport), bare(network)

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        args, kwargs = arguments(condition)
        told = {"y": args[0]} if args else kwargs
        with _drawn(transport, time_of(transport, process.sigma(u), x0), noise):
            found: PerExample = _own_losses(transport)(transport, called, x0, told)["loss"]
        return found

    return ReadyLoss(process, called, losses)


def pace(transport: Any, pacer: Pacer) -> Pacer:
    """Let a Transport train at the times of a pacer, its losses weighted by it; returns the pacer.

    Evaluation with other draws is `pacer.eval()`; everything else of the Transport stays as it is.
    """
    if not isinstance(pacer.process, FlowProcess):
        raise InvalidParameter(
            f"SiT's path is a flow, and the Pacer was made for {pacer.process!r}: make it for "
            "stepwell.integrations.sit.process_of(transport)."
        )
    own = _own_losses(transport)

    def training_losses(model: nn.Module, x1: Tensor, model_kwargs: Any = None) -> dict[str, Any]:
        paced, noise = pacer.draw(x1, condition=model_kwargs or None), torch.randn_like(x1)
        with _drawn(transport, time_of(transport, paced.sigma, x1), noise):
            terms = own(transport, model, x1, model_kwargs)
        pacer.observe(terms["loss"])
        return {**terms, "loss": terms["loss"] * paced.weight}

    transport.training_losses = training_losses
    return pacer


def time_of(transport: Any, sigma: PerExample, x1: Tensor) -> PerExample:
    """SiT's t in (0, 1), 1 is data, of a share of noise; within the interval where it trains."""
    start, end = transport.check_interval(transport.train_eps, transport.sample_eps)
    time: PerExample = start + (end - start) * (1 - sigma)
    return time.to(x1)


@contextmanager
def _drawn(transport: Any, time: PerExample, noise: Tensor) -> Iterator[None]:
    """`Transport.sample` answers these times and this noise meanwhile."""
    transport.sample = lambda x1: (time, noise, x1)
    try:
        yield
    finally:
        del transport.sample


def _own_losses(transport: Any) -> Any:
    """The method of the class: `pace` puts its own before it."""
    return type(transport).training_losses

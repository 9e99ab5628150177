"""SiT's Transport (Ma et al. 2024): time runs from noise (0) to data (1), and is drawn inside its loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.tensors import PerExample
from stepwell.integrations.shared import require_pacer
from stepwell.loss_at import NetworkLoss, model_kwargs, unwrap_network
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
        f"this Transport weights its {model.lower()} loss by {weight.lower()}, which is the plain loss of no "
        "process here: use loss_weight=None or 'velocity', and give the Pacer weighting='likelihood'."
    )


def loss_at(transport: Any, network: nn.Module) -> NetworkLoss:
    """The "loss" of `transport.training_losses` at chosen times; a tensor as condition is the label y."""
    process, inner = process_of(transport), unwrap_network(network)

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        with _sampling(transport, time_of(transport, process.sigma(u), x0), noise):
            terms = type(transport).training_losses(transport, inner, x0, model_kwargs(condition))
        return terms["loss"]  # type: ignore[no-any-return]

    return NetworkLoss(process, inner, losses)


def pace(transport: Any, pacer: Pacer) -> Pacer:
    """Let a Transport train at the pacer's times, with its losses weighted by it; returns the pacer.

    Evaluation with other draws is `pacer.eval()`; everything else of the Transport stays as it is.
    """
    if not isinstance(require_pacer(pacer, "pace(transport, pacer)").process, FlowProcess):
        raise InvalidParameter(
            f"SiT's path is a flow, and the Pacer was made for {pacer.process}: make it for "
            "stepwell.integrations.sit.process_of(transport)."
        )

    def training_losses(model: nn.Module, x1: Tensor, model_kwargs: Any = None) -> dict[str, Any]:
        drawn, noise = pacer.draw(x1, condition=model_kwargs or None), torch.randn_like(x1)
        with _sampling(transport, time_of(transport, drawn.sigma, x1), noise):
            terms = type(transport).training_losses(transport, model, x1, model_kwargs)
        pacer.observe(terms["loss"])
        return {**terms, "loss": terms["loss"] * drawn.weight}

    transport.training_losses = training_losses
    return pacer


def time_of(transport: Any, sigma: PerExample, x1: Tensor) -> PerExample:
    """SiT's t [B] for shares of noise [B]: 1 is data; within the interval where it trains."""
    start, end = transport.check_interval(transport.train_eps, transport.sample_eps)
    time: PerExample = start + (end - start) * (1 - sigma)
    return time.to(x1)


@contextmanager
def _sampling(transport: Any, time: PerExample, noise: Tensor) -> Iterator[None]:
    """`Transport.sample` returns these times and this noise meanwhile."""
    transport.sample = lambda x1: (time, noise, x1)
    try:
        yield
    finally:
        del transport.sample

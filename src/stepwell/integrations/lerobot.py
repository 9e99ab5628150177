"""LeRobot's flow-matching policies (SmolVLA, pi0, pi0.5): their model draws its time, where 1 is noise."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.core.density import Table, edges
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.tensors import PerExample
from stepwell.integrations.shared import require_pacer
from stepwell.loss_at import NetworkLoss
from stepwell.pacer import Pacer
from stepwell.processes.flow import FlowProcess
from stepwell.samplers.static import FINE_BINS, beta_cdf

_ALPHA, _BETA, _SCALE, _OFFSET = 1.5, 1.0, 0.999, 0.001
"""time = offset + scale x Beta(alpha, beta): pi0's numbers (Black et al. 2024), also in SmolVLA's code."""


def process_of(policy: nn.Module) -> FlowProcess:
    """The flow that a policy trains; its reference is the density that the policy draws by itself.

    A corrected sampler, such as `auto`, then keeps the policy's objective.
    """
    config = policy.config
    alpha = getattr(config, "time_sampling_beta_alpha", _ALPHA)
    beta = getattr(config, "time_sampling_beta_beta", _BETA)
    borders = edges(FINE_BINS)
    process = FlowProcess("velocity", time_scale=1.0)
    process.reference = Table(borders, beta_cdf(borders, alpha, beta).diff())
    return process


def loss_at(policy: nn.Module) -> NetworkLoss:
    """The losses of a policy at chosen times: x0 are actions, the condition is what else its model gets."""
    process, model = process_of(policy), _model_of(policy)

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        time = _time(policy, process.sigma(u))
        # The class's own: the model's may be paced.
        elementwise = type(model).forward(model, **condition, actions=x0, noise=noise, time=time)
        return elementwise.flatten(1).mean(1)  # type: ignore[no-any-return]

    return NetworkLoss(process, model, losses)


def pace(policy: nn.Module, pacer: Pacer) -> Pacer:
    """Let a policy train at the pacer's times, with its losses weighted by it; returns the pacer.

    A time that is given, and everything that acts (`select_action`), stays as it is.
    """
    if not isinstance(require_pacer(pacer, "pace(policy, pacer)").process, FlowProcess):
        raise InvalidParameter(
            f"the policy trains a flow, and the Pacer was made for {pacer.process}: make it for "
            "stepwell.integrations.lerobot.process_of(policy)."
        )
    model = _model_of(policy)
    forward, sample_time = model.forward, model.sample_time
    signature = inspect.signature(forward)
    asked: Tensor | None = None

    def paced_time(bsize: int, device: Any) -> Tensor:
        # pi0 asks for times before its model has the actions: `paced` draws in the place of these.
        nonlocal asked
        asked = sample_time(bsize, device) if not model.training else torch.zeros(bsize, device=device)
        return asked

    def paced(*args: Any, **kwargs: Any) -> Tensor:
        given = signature.bind(*args, **kwargs)
        time = given.arguments.get("time")
        if not model.training or (time is not None and time is not asked):
            return forward(*args, **kwargs)  # type: ignore[no-any-return]
        condition = {name: one for name, one in given.arguments.items() if name not in _DRAWN}
        drawn = pacer.draw(given.arguments["actions"], condition=condition)
        given.arguments["time"] = _time(policy, drawn.sigma)
        losses: Tensor = forward(*given.args, **given.kwargs)
        pacer.observe(losses.flatten(1).mean(1))
        return losses * drawn.weight.view(-1, *[1] * (losses.dim() - 1))

    model.forward, model.sample_time = paced, paced_time
    return pacer


_DRAWN = ("actions", "noise", "time")
"""What the model mixes; all else is its condition."""


def _model_of(policy: nn.Module) -> Any:
    """The part of a policy that draws its time, also below an adapter."""
    for module in policy.modules():
        if set(_DRAWN) <= set(inspect.signature(module.forward).parameters):
            return module
    raise Unsupported(
        f"{type(policy).__name__} has no part whose forward takes actions, noise and time: pace SmolVLA, "
        "pi0 or pi0.5, or draw from the Pacer in the policy's own forward."
    )


def _time(policy: nn.Module, sigma: PerExample) -> PerExample:
    """The policy's time [B] for shares of noise [B]: never 0, as it draws by itself."""
    config = policy.config
    scale = getattr(config, "time_sampling_scale", _SCALE)
    offset = getattr(config, "time_sampling_offset", _OFFSET)
    time: PerExample = offset + scale * sigma
    return time.to(torch.float32)

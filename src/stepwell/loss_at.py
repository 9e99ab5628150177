"""Ready-made `loss_at`: the plain losses of a network at any times, for samplers that measure.

A condition is a tensor (the network's third argument), a mapping or a dataclass (its keyword arguments).
Nothing is imported but torch: schedulers and diffusions are read by their attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stepwell.core.deprecated import deprecated
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample, per_example
from stepwell.objective import Objective
from stepwell.processes.discrete import DiscreteProcess
from stepwell.processes.edm import EdmProcess
from stepwell.processes.scheduler import process_from


@dataclass(frozen=True)
class NetworkLoss:
    """A `loss_at` together with its process and the network that it calls."""

    process: NoiseProcess
    network: nn.Module
    losses: Callable[[Tensor, Tensor, PerExample, Any], PerExample]

    def __call__(self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any = None) -> PerExample:
        """The losses [B] of examples x0 [B, ...] at unit times u [B], each averaged over its example."""
        return self.losses(x0, noise, u, condition)


def diffusers(network: nn.Module, noise_scheduler: Any, prediction: str | None = None) -> NetworkLoss:
    """The loss of a diffusers network: epsilon, v, sample or flow, as the scheduler's config says.

    `prediction` is for networks that were trained on another target than that.
    """
    process, inner = process_from(noise_scheduler, prediction), unwrap_network(network)
    objective, by_name = Objective(process), _takes_time_by_name(inner)

    def denoiser(input: Tensor, time: PerExample, condition: Any) -> Tensor:
        args, kwargs = network_arguments(condition)
        if by_name:
            return _output(inner(input, *args, timestep=time, **kwargs))
        return _output(inner(input, time, *args, **kwargs))

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        return objective(denoiser, x0, noise, u, condition).plain

    return NetworkLoss(process, inner, losses)


def edm(network: nn.Module, sigma_data: float = 0.5, process: EdmProcess | None = None) -> NetworkLoss:
    """EDM's loss of a preconditioned denoiser D(x, sigma, condition) (Karras et al. 2022, Eq. 2 and Table 1).

    It has EDM's weight (sigma^2 + d^2) / (sigma d)^2, which makes it the plain loss of the raw network F.
    """
    own, inner = EdmProcess(sigma_data=sigma_data) if process is None else process, unwrap_network(network)
    data = own.sigma_data

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        sigma = own.sigma(u)
        args, kwargs = network_arguments(condition)
        output = _output(inner((x0 + per_example(sigma, x0) * noise).to(x0.dtype), sigma, *args, **kwargs))
        error = (output.to(u.dtype) - x0.to(u.dtype)).square().reshape(len(x0), -1).mean(1)
        return error * (sigma**2 + data**2) / (sigma * data) ** 2

    return NetworkLoss(own, inner, losses)


def guided_diffusion(diffusion: Any, network: nn.Module) -> NetworkLoss:
    """The "loss" of `diffusion.training_losses` (guided-diffusion, improved-diffusion, DiT).

    A tensor as condition is the label `y`; anything else are `model_kwargs`.
    """
    inner = unwrap_network(network)
    predictions = {"EPSILON": "eps", "START_X": "x0", "VELOCITY": "v"}
    prediction = getattr(getattr(diffusion, "model_mean_type", None), "name", "EPSILON")
    if prediction not in predictions or not hasattr(diffusion, "alphas_cumprod"):
        raise Unsupported(
            f"{type(diffusion).__name__} predicts {prediction}: a process is known for "
            f"{', '.join(predictions)} over alphas_cumprod only. Write a loss_at of your own: (x0, noise, u, "
            "condition) -> losses [B]."
        )
    process = DiscreteProcess(torch.as_tensor(diffusion.alphas_cumprod), predictions[prediction])

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        kwargs = model_kwargs(condition)
        terms = diffusion.training_losses(inner, x0, process.index(u), model_kwargs=kwargs, noise=noise)
        return terms["loss"]  # type: ignore[no-any-return]

    return NetworkLoss(process, inner, losses)


def network_arguments(condition: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a network, after input and time."""
    if condition is None:
        return (), {}
    if isinstance(condition, Tensor):
        return (condition,), {}
    if isinstance(condition, (tuple, list)):
        return tuple(condition), {}
    if isinstance(condition, Mapping):
        return (), dict(condition)
    if is_dataclass(condition) and not isinstance(condition, type):
        values = {field.name: getattr(condition, field.name) for field in fields(condition)}
        return (), {name: value for name, value in values.items() if value is not None}
    raise InvalidParameter(
        "a condition must be a tensor, a mapping or dataclass of keyword arguments, or a tuple, "
        f"not {type(condition).__name__}."
    )


def model_kwargs(condition: Any) -> dict[str, Any]:
    """A condition as the `model_kwargs` of guided-diffusion and SiT: a tensor is the label y."""
    args, kwargs = network_arguments(condition)
    return {"y": args[0]} if args else kwargs


def unwrap_network(network: nn.Module) -> nn.Module:
    """The network without DDP, whose hooks would take a probe for a training step."""
    inside = getattr(network, "_orig_mod", network)
    # torch.compile's own wrapping stays, unless DDP is inside.
    return inside.module if isinstance(inside, DistributedDataParallel) else network


def _takes_time_by_name(network: nn.Module) -> bool:
    """Whether the second argument is something else (the text, in diffusers' SD3 and its relatives)."""
    names = list(inspect.signature(getattr(network, "_orig_mod", network).forward).parameters)
    return "timestep" in names and names.index("timestep") != 1


def _output(output: Any) -> Tensor:
    """The tensor of a network's output: itself, `.sample`, or the first of a tuple."""
    tensor = output if isinstance(output, Tensor) else getattr(output, "sample", None)
    if tensor is None and isinstance(output, (tuple, list)) and output:
        tensor = output[0]
    if not isinstance(tensor, Tensor):
        raise InvalidParameter(
            f"the network returned a {type(output).__name__}: it must be a tensor, a tuple or have .sample."
        )
    return tensor


_DEPRECATED = {
    "ReadyLoss": "stepwell.loss_at.NetworkLoss",
    "arguments": "stepwell.loss_at.network_arguments",
    "bare": "stepwell.loss_at.unwrap_network",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return deprecated(__name__, name, _DEPRECATED)

"""Ready-made `loss_at`: the plain losses of a host's network at any times, for samplers that measure.

A condition is a tensor (the network's third argument), a mapping or a dataclass (its keyword arguments).
Nothing is imported but torch: schedulers and diffusions are read by their attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.core.tensors import PerExample, per_example
from stepwell.objective import Objective
from stepwell.processes.discrete import DiscreteProcess
from stepwell.processes.edm import EdmProcess
from stepwell.processes.scheduler import process_from


@dataclass(frozen=True)
class ReadyLoss:
    """A `loss_at` that knows its process and the network it calls."""

    process: NoiseProcess
    network: nn.Module
    losses: Callable[[Tensor, Tensor, PerExample, Any], PerExample]

    def __call__(self, x0: Tensor, noise: Tensor, u: PerExample, condition: Any = None) -> PerExample:
        """The losses [B] of examples x0 [B, ...] at unit times u [B], each averaged over its example."""
        return self.losses(x0, noise, u, condition)


def diffusers(network: nn.Module, noise_scheduler: Any, prediction: str | None = None) -> ReadyLoss:
    """The loss of a diffusers network: epsilon, v, sample or flow, as the scheduler's config says.

    `prediction` is for networks that were trained on another than that.
    """
    process, called = process_from(noise_scheduler, prediction), bare(network)
    objective, by_name = Objective(process), _takes_time_by_name(called)

    def denoiser(input: Tensor, time: PerExample, condition: Any) -> Tensor:
        args, kwargs = arguments(condition)
        if by_name:
            return _answer(called(input, *args, timestep=time, **kwargs))
        return _answer(called(input, time, *args, **kwargs))

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        return objective(denoiser, x0, noise, u, condition).plain

    return ReadyLoss(process, called, losses)


def edm(network: nn.Module, sigma_data: float = 0.5, process: EdmProcess | None = None) -> ReadyLoss:
    """EDM's loss of a preconditioned denoiser D(x, sigma, condition) (Karras et al. 2022, Eq. 2 and Table 1).

    It has EDM's weight (sigma^2 + d^2) / (sigma d)^2, which makes it the plain loss of the raw network F.
    """
    over, called = EdmProcess(sigma_data=sigma_data) if process is None else process, bare(network)
    data = over.sigma_data

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        sigma = over.sigma(u)
        args, kwargs = arguments(condition)
        said = _answer(called((x0 + per_example(sigma, x0) * noise).to(x0.dtype), sigma, *args, **kwargs))
        error = (said.to(u.dtype) - x0.to(u.dtype)).square().reshape(len(x0), -1).mean(1)
        return error * (sigma**2 + data**2) / (sigma * data) ** 2

    return ReadyLoss(over, called, losses)


def guided_diffusion(diffusion: Any, network: nn.Module) -> ReadyLoss:
    """The "loss" of `diffusion.training_losses` (guided-diffusion, improved-diffusion, DiT).

    A tensor as condition is the label `y`; anything else are `model_kwargs`.
    """
    called, said = bare(network), getattr(getattr(diffusion, "model_mean_type", None), "name", "EPSILON")
    predictions = {"EPSILON": "eps", "START_X": "x0", "VELOCITY": "v"}
    if said not in predictions or not hasattr(diffusion, "alphas_cumprod"):
        raise Unsupported(
            f"{type(diffusion).__name__} predicts {said}: a process is known for {', '.join(predictions)} "
            "over alphas_cumprod only. Write a loss_at of your own: (x0, noise, u, condition) -> losses [B]."
        )
    process = DiscreteProcess(torch.as_tensor(diffusion.alphas_cumprod), predictions[said])

    def losses(x0: Tensor, noise: Tensor, u: PerExample, condition: Any) -> PerExample:
        args, kwargs = arguments(condition)
        given = {"y": args[0]} if args else kwargs
        terms = diffusion.training_losses(called, x0, process.index(u), model_kwargs=given, noise=noise)
        found: PerExample = terms["loss"]
        return found

    return ReadyLoss(process, called, losses)


def arguments(condition: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A condition as what a network is called with beside input and time."""
    if condition is None:
        return (), {}
    if isinstance(condition, Tensor):
        return (condition,), {}
    if isinstance(condition, (tuple, list)):
        return tuple(condition), {}
    if isinstance(condition, Mapping):
        return (), dict(condition)
    if is_dataclass(condition) and not isinstance(condition, type):
        named = {field.name: getattr(condition, field.name) for field in fields(condition)}
        return (), {name: value for name, value in named.items() if value is not None}
    raise InvalidParameter(
        "a condition must be a tensor, a mapping or dataclass of keyword arguments, or a tuple, "
        f"not {type(condition).__name__}."
    )


def bare(network: nn.Module) -> nn.Module:
    """The network without DDP around it: its hooks would take a probe for a training step."""
    inside = getattr(network, "_orig_mod", network)
    # torch.compile's own wrapping stays, unless DDP is inside.
    return inside.module if isinstance(inside, DistributedDataParallel) else network


def _takes_time_by_name(network: nn.Module) -> bool:
    """Whether the second argument is something else (the text, in diffusers' SD3 and its relatives)."""
    names = list(inspect.signature(getattr(network, "_orig_mod", network).forward).parameters)
    return "timestep" in names and names.index("timestep") != 1


def _answer(output: Any) -> Tensor:
    """The tensor of what a network returns: itself, `.sample`, or the first of a tuple."""
    found = output if isinstance(output, Tensor) else getattr(output, "sample", None)
    if found is None and isinstance(output, (tuple, list)) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        raise InvalidParameter(
            f"the network answered a {type(output).__name__}: it must be a tensor, a tuple or have .sample."
        )
    return found

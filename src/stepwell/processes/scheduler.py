"""A process from a scheduler object, read by its attributes: diffusers is never imported."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepwell.core.errors import Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.processes.discrete import DiscreteProcess
from stepwell.processes.flow import FlowProcess


def process_from(scheduler: Any, prediction: str | None = None) -> NoiseProcess:
    """The process of a DDPM-family or flow-match scheduler; `prediction` overrides its own."""
    if isinstance(scheduler, NoiseProcess):
        return scheduler
    own = _setting(scheduler, "prediction_type")
    if hasattr(scheduler, "alphas_cumprod"):
        if prediction is None and own == "flow_prediction":
            raise Unsupported(
                f"{type(scheduler).__name__} predicts a flow but carries DDPM betas: "
                "write stepwell.process('flow', shift=...) with its flow_shift."
            )
        return _named(DiscreteProcess(_alphas_cumprod(scheduler), prediction or own or "eps"), scheduler)
    if hasattr(scheduler, "sigmas") and _setting(scheduler, "shift") is not None:
        return _named(_flow(scheduler, prediction or "velocity"), scheduler)
    raise Unsupported(
        f"cannot read a noise process from {type(scheduler).__name__}: it has neither alphas_cumprod "
        "(DDPM family) nor sigmas with a shift (flow matching). Name one: stepwell.process('linear'), "
        "or build stepwell.processes.discrete.DiscreteProcess(alphas_cumprod)."
    )


def _named(process: NoiseProcess, scheduler: Any) -> NoiseProcess:
    shift = "" if process.shift == 1 else f", shift {process.shift:g}"
    about = f"{process.timesteps} timesteps{shift}, {process.prediction}"
    process.written = f"{type(scheduler).__name__} ({about})"
    return process


def _setting(scheduler: Any, name: str) -> Any:
    return getattr(getattr(scheduler, "config", None), name, None)


def _alphas_cumprod(scheduler: Any) -> Tensor:
    stored = torch.as_tensor(scheduler.alphas_cumprod).detach().cpu().double()
    betas = getattr(scheduler, "betas", None)
    if betas is None:
        return stored
    # abar in float32 knows 1 - abar_0 to three digits only; its betas know it to seven.
    exact = torch.cumprod(1 - torch.as_tensor(betas).detach().cpu().double(), dim=0)
    agrees = exact.shape == stored.shape and torch.allclose(exact, stored, rtol=1e-3, atol=1e-5)
    return exact if agrees else stored


def _flow(scheduler: Any, prediction: str) -> FlowProcess:
    trained = _setting(scheduler, "num_train_timesteps") or 1000
    sigmas = torch.as_tensor(scheduler.sigmas).detach().cpu().double()
    if len(sigmas) == trained + 1 and sigmas[-1] == 0:
        sigmas = sigmas[:-1]
    if len(sigmas) != trained:
        raise Unsupported(
            f"{type(scheduler).__name__} is set to {len(sigmas)} inference steps, not to its {trained} "
            "training timesteps: pass a scheduler on which set_timesteps was never called."
        )
    # With dynamic shifting the sigmas are not shifted yet: the shift comes with each image size.
    shift = 1.0 if _setting(scheduler, "use_dynamic_shifting") else float(_setting(scheduler, "shift"))
    process = FlowProcess(prediction, shift=shift, timesteps=trained, time_scale=float(trained))
    # Index 0 of a flow scheduler is pure noise; unit time 0 is data.
    if not torch.allclose(process.sigma(process.grid()), sigmas.flip(0), atol=1e-4):
        raise Unsupported(
            f"the sigmas of {type(scheduler).__name__} are not those of shift {shift:g} over {trained} "
            "timesteps (Karras, exponential, beta or inverted sigmas?): pass one with default sigmas."
        )
    return process

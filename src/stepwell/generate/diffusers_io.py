"""Folders of diffusers: one that holds a network to fine-tune is read here; `export.py` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from stepwell.core.errors import StepwellError
from stepwell.core.process import NoiseProcess
from stepwell.core.reading import Unreadable, object_of
from stepwell.processes.scheduler import process_from

_WEIGHTS = "diffusion_pytorch_model.safetensors"
_SCHEDULERS = {
    kind.__name__: kind
    for kind in (
        DDPMScheduler,
        DDIMScheduler,
        PNDMScheduler,
        DPMSolverMultistepScheduler,
        UniPCMultistepScheduler,
        EulerDiscreteScheduler,
        EulerAncestralDiscreteScheduler,
        HeunDiscreteScheduler,
        FlowMatchEulerDiscreteScheduler,
    )
}
"""What may stand beside a network: a folder is data, and names no other class to be made."""


class BadPipeline(StepwellError, ValueError):
    """A folder of diffusers that cannot be read."""


@dataclass(frozen=True)
class PipelineFolder:
    """The contents of a folder that `stepwell export`, or diffusers itself, wrote."""

    tensors: dict[str, Tensor]
    """By diffusers' names."""
    config: dict[str, Any]
    process: NoiseProcess | None
    """None if there is no scheduler beside the network."""


def read_pipeline(home: Path, scheduler: Path | None) -> PipelineFolder:
    """The network in a folder and the process of the scheduler in another; nothing is unpickled."""
    config = _object(home / "config.json")
    weights = home / _WEIGHTS
    if not weights.is_file():
        raise BadPipeline(
            f"{home} has no {_WEIGHTS}: save it again as one safetensors file "
            "(save_pretrained(..., safe_serialization=True))."
        )
    try:
        tensors = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise BadPipeline(f"{weights} is truncated or not safetensors ({error}): export it again.") from error
    return PipelineFolder(tensors, config, None if scheduler is None else process_in(scheduler))


def process_in(folder: Path) -> NoiseProcess:
    """The process of the scheduler that diffusers saved in a folder."""
    config = _object(folder / "scheduler_config.json")
    name = str(config.get("_class_name"))
    if name not in _SCHEDULERS:
        raise BadPipeline(
            f"{folder} names {name!r} as its scheduler, and must name one of {', '.join(_SCHEDULERS)}: save "
            "the folder with the scheduler that the network was trained with."
        )
    settings = {key: value for key, value in config.items() if not key.startswith("_")}
    try:
        scheduler = _SCHEDULERS[name].from_config(settings)
    except (TypeError, ValueError, ArithmeticError, RuntimeError, NotImplementedError) as error:
        raise BadPipeline(f"{folder} has settings that {name} refuses ({error}): export it again.") from error
    return process_from(scheduler)


def _object(path: Path) -> dict[str, Any]:
    try:
        return object_of(path)
    except Unreadable as error:
        raise BadPipeline(f"{error} Export the folder again.") from error

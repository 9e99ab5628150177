"""Folders of diffusers: a network is exported as a DDPMPipeline, and read back to be fine-tuned."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusers import (
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    PNDMScheduler,
    UNet2DModel,
    UniPCMultistepScheduler,
)
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from stepwell.core.errors import StepwellError, Unsupported
from stepwell.core.process import NoiseProcess
from stepwell.generate.diffusers_solvers import make_scheduler
from stepwell.models.denoiser import Denoiser
from stepwell.models.lora import merged
from stepwell.processes.scheduler import process_from

_INDEX, _CONFIG, _WEIGHTS = "model_index.json", "config.json", "diffusion_pytorch_model.safetensors"
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
    """By the names of a UNet2DModel."""
    config: dict[str, Any]
    process: NoiseProcess | None
    """None if there is no scheduler beside the network."""


def is_pipeline(path: Path) -> bool:
    """Whether a folder is a pipeline's or a single network's."""
    return (path / _INDEX).is_file() or (path / _CONFIG).is_file()


def read_pipeline(path: Path) -> PipelineFolder:
    """The unet/ and scheduler/ of a pipeline, or a network's own folder; nothing is unpickled."""
    home = path / "unet" if (path / _INDEX).is_file() else path
    config = _object(home / _CONFIG)
    kind = config.get("_class_name")
    if kind != "UNet2DModel":
        raise BadPipeline(f"{home} holds a {kind}, and only a UNet2DModel can be started from.")
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
    return PipelineFolder(tensors, config, _process(path / "scheduler"))


def _process(folder: Path) -> NoiseProcess | None:
    if not folder.is_dir():
        return None
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
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadPipeline(f"{path} cannot be read ({error}): export the folder again.") from error
    if not isinstance(values, dict):
        raise BadPipeline(f"{path} is not a JSON object: export the folder again.")
    return values


def export(denoiser: Denoiser, process: NoiseProcess, out: Path, latents: bool = False) -> None:
    """Write unet/, scheduler/ and model_index.json, with adapters added to their layers.

    A network that DDPMPipeline cannot run is refused.
    """
    if reason := _not_exportable(denoiser, process, latents):
        raise Unsupported(
            f"{reason}: use stepwell generate, or load the network from the run yourself "
            "(stepwell.recipes.experiment.trained)."
        )
    plain = UNet2DModel.from_config(denoiser.network.config)
    plain.load_state_dict(merged(denoiser.network.state_dict()))
    scheduler = make_scheduler(process, "ddpm", denoiser.learned_variance)
    # Under another name first: a folder that diffusers would load half of is worse than none.
    unfinished = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        DDPMPipeline(unet=plain, scheduler=scheduler).save_pretrained(unfinished)
        unfinished.replace(out)
    except (OSError, SafetensorError) as error:
        raise StepwellError(
            f"could not write {out} ({error}): make room, or choose another --out."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _not_exportable(denoiser: Denoiser, process: NoiseProcess, latents: bool) -> str:
    """Why DDPMPipeline cannot run a network, or nothing."""
    network = denoiser.network
    if not isinstance(network, UNet2DModel):
        kind = type(network).__name__
        return f"export writes DDPMPipeline's folder, which holds a UNet2DModel, and this network is a {kind}"
    if not process.is_ddpm:
        return f"DDPMPipeline needs DDPM's discrete chain, and this network was trained on {process!r}"
    if latents:
        return "this network makes latents, and DDPMPipeline has no decoder to turn them into images"
    if denoiser.classes:
        return f"DDPMPipeline passes no labels, and this network was trained with {denoiser.classes} classes"
    if network.config.in_channels != network.config.out_channels // (2 if denoiser.learned_variance else 1):
        return "this network takes low-resolution images as input, and DDPMPipeline passes none"
    return ""

"""A folder that diffusers wrote, read back: the network's tensors, its configuration and its process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
from diffusers import DDPMPipeline, UNet2DModel
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


class BadPipeline(StepwellError, ValueError):
    """A folder of diffusers that cannot be read."""


@dataclass(frozen=True)
class PipelineFolder:
    """What `stepwell export`, or diffusers itself, left."""

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
    name = str(_object(folder / "scheduler_config.json").get("_class_name"))
    kind = getattr(diffusers, name, None)
    if kind is None:
        raise BadPipeline(f"{folder} holds a {name}, which this version of diffusers does not have.")
    return process_from(kind.from_pretrained(folder))


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadPipeline(f"{path} cannot be read ({error}): export the folder again.") from error
    if not isinstance(found, dict):
        raise BadPipeline(f"{path} is not a JSON object: export the folder again.")
    return found


_INSTEAD = (
    "use stepwell generate, or load the network from the run yourself (stepwell.recipes.experiment.trained)."
)


def export(denoiser: Denoiser, process: NoiseProcess, out: Path, latents: bool = False) -> None:
    """Write unet/, scheduler/ and model_index.json; what the pipeline could not run is refused.

    Adapters are added to their layers: the folder holds an ordinary network.
    """
    network = denoiser.network
    kind = type(network).__name__
    if not isinstance(network, UNet2DModel):
        raise Unsupported(
            f"the one format of export is DDPMPipeline's folder, which holds a UNet2DModel, and this network "
            f"is a {kind}: {_INSTEAD}"
        )
    if latents:
        raise Unsupported(
            "this network makes latents, and DDPMPipeline has no decoder to turn them into images: "
            + _INSTEAD
        )
    if denoiser.classes:
        raise Unsupported(
            f"DDPMPipeline passes no labels, and this network was trained with {denoiser.classes} classes: "
            f"{_INSTEAD}"
        )
    answered = network.config.out_channels // (2 if denoiser.learned_variance else 1)
    if network.config.in_channels != answered:
        raise Unsupported(
            "this network enlarges images that it is shown beside the noise, and DDPMPipeline shows it none: "
            + _INSTEAD
        )
    scheduler = make_scheduler(process, "ddpm", denoiser.learned_variance)
    plain = UNet2DModel.from_config(network.config)
    plain.load_state_dict(merged(network.state_dict()))
    DDPMPipeline(unet=plain, scheduler=scheduler).save_pretrained(out)

"""A folder that diffusers wrote, read back: the network's tensors, its configuration and its process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from stepwell.core.errors import StepwellError
from stepwell.core.process import NoiseProcess
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

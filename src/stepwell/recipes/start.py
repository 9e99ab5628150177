"""Where fine-tuning begins: the weights of a run, of a checkpoint or of an exported folder."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from stepwell.catalogue.build import as_process
from stepwell.core.digest import weights_digest
from stepwell.core.errors import StepwellError
from stepwell.core.process import NoiseProcess, agree
from stepwell.models.denoiser import Denoiser
from stepwell.models.lora import is_adapter, merged
from stepwell.recipes.load import BadRecipe
from stepwell.recipes.schema import Recipe
from stepwell.runs.directory import RECIPE
from stepwell.train import checkpoint

Shape = tuple[int, int, int]


class NothingToStartFrom(StepwellError, ValueError):
    """A place without weights, or with weights that cannot be read."""


@dataclass(frozen=True)
class Start:
    """Weights to begin with, and all that is known of the network that they are of."""

    title: str
    """Where they are and which they are, for people."""
    tensors: dict[str, Tensor]
    """By the names of a denoiser without adapters."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the recipe that trained them, if there is one."""
    config: dict[str, Any] = field(default_factory=dict)
    """Of a UNet2DModel, if diffusers wrote it."""
    process: NoiseProcess | None = None
    shape: Shape | None = None
    """Of its examples: channels, height, width."""

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the weights."""
        return weights_digest(self.tensors)


def read(where: str) -> Start:
    """What `from=` names, or an error that says what is wrong with it."""
    path = Path(where).expanduser()
    if path.is_file():
        return _from_checkpoint(path, path.parent.parent, checkpoint.load(path))
    if (path / RECIPE).is_file():
        found, wrong = checkpoint.newest(path / "checkpoints")
        if found is None:
            why = wrong[0] if wrong else "it was not trained to its first one, or it is a thin record."
            raise NothingToStartFrom(f"{path} has no checkpoint that can be read: {why}")
        return _from_checkpoint(path, path, found)
    if path.is_dir():
        return _from_pipeline(path)
    near = _nearest(path)
    raise NothingToStartFrom(
        f"there is nothing at {str(path)!r}: name a run directory, a checkpoint (.safetensors) or a folder "
        f"that `stepwell export` made.{near}"
    )


def _from_checkpoint(path: Path, run: Path, found: checkpoint.Checkpoint) -> Start:
    """The averaged weights, with adapters added to their layers."""
    settings = _settings(run)
    shape = found.info.get("example_shape")
    spec = settings.get("process")
    return Start(
        f"{path}, averaged weights after step {found.info['step']}",
        merged(averaged(path, found.tree)),
        settings,
        process=None if spec is None else as_process(str(spec)),
        shape=None if shape is None else (shape[0], shape[1], shape[2]),
    )


def averaged(path: Path, tree: dict[str, Any]) -> dict[str, Tensor]:
    """The model of a checkpoint with the averages in their places: of adapters only, if it has any."""
    model, average = tree["model"], tree["ema"]
    names = [name for name in model if is_adapter(name)] or list(model)
    if len(names) != len(average):
        raise NothingToStartFrom(f"{path} has {len(average)} averages for {len(names)} tensors.")
    return {**model, **dict(zip(names, average, strict=True))}


def _settings(run: Path) -> dict[str, Any]:
    try:
        found = json.loads((run / RECIPE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise NothingToStartFrom(f"{run / RECIPE} cannot be read: {error}.") from None
    return found if isinstance(found, dict) else {}


def _from_pipeline(path: Path) -> Start:
    from stepwell.generate.diffusers_io import is_pipeline, read_pipeline

    if not is_pipeline(path):
        raise NothingToStartFrom(
            f"{path} is neither a run directory (it has no {RECIPE}) nor a folder that diffusers wrote."
        )
    found = read_pipeline(path)
    size = found.config.get("sample_size")
    channels = found.config.get("in_channels")
    square = isinstance(size, int) and isinstance(channels, int)
    return Start(
        f"{path}, exported",
        {f"network.{name}": tensor for name, tensor in found.tensors.items()},
        config={name: value for name, value in found.config.items() if not name.startswith("_")},
        process=found.process,
        shape=(channels, size, size) if square else None,  # type: ignore[arg-type]
    )


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    near = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=1)
    return f" Did you mean {str(path.with_name(near[0]))!r}?" if near else ""


def digest_at(where: str) -> str:
    """The digest of the weights at a place, read once as long as its files stay as they are."""
    path = Path(where).expanduser()
    files = sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]
    stamps = tuple((str(file), file.stat().st_mtime_ns) for file in files if file.exists())
    return _digest(where, stamps)


@lru_cache(maxsize=8)
def _digest(where: str, stamps: tuple[tuple[str, int], ...]) -> str:
    return read(where).digest


_SAME = ("model", "learned_variance", "labels", "super_resolution")
"""Settings that make a network what it is."""
_NOT_THE_FUNCTION = frozenset({"sample_size", "dropout"})
"""Of a UNet2DModel: what changes no answer."""


def require_fit(
    start: Start, recipe: Recipe, denoiser: Denoiser, process: NoiseProcess, shape: Shape
) -> None:
    """Refuse weights of another network, process, prediction or image size, by name."""
    found = [*_settings_fit(start, recipe), *_process(start, process, recipe), *_shape(start, shape)]
    found += _config(start, denoiser)
    if not found:
        # Otherwise these would be the same mistakes again, as names of layers.
        found = _tensors(start.tensors, denoiser.state_dict())
    if recipe.start_digest and recipe.start_digest != start.digest:
        found.append(
            f"its weights have the digest {start.digest}, and {recipe.start_digest} was asked for: they are "
            "other weights now. Leave start_digest out to take these, with another out="
        )
    if found:
        raise BadRecipe(f"from={recipe.start} ({start.title})", found)


def _settings_fit(start: Start, recipe: Recipe) -> list[str]:
    pairs = [(key, start.settings.get(key, getattr(Recipe, key)), getattr(recipe, key)) for key in _SAME]
    if not start.settings:
        return []
    return [
        f"{key}={_word(there)} there, {_word(here)} here: write {key}={_word(there)}"
        for key, there, here in pairs
        if there != here
    ]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _process(start: Start, process: NoiseProcess, recipe: Recipe) -> list[str]:
    there = start.process
    if there is None or agree(there, process, told=True):
        return []
    if spec := start.settings.get("process"):
        return [f"process={spec} there, {recipe.process} here: write process={spec}"]
    said, ours = (getattr(one, "prediction", None) for one in (there, process))
    if said != ours:
        return [f"its network predicts {said}, ours {ours}: write process={recipe.process}:prediction={said}"]
    return [f"it was trained on {there!r}, and process={recipe.process} is {process!r}: give its process"]


def _shape(start: Start, shape: Shape) -> list[str]:
    if start.shape is None or start.shape == shape:
        return []
    channels, size, _ = start.shape
    found = []
    if channels != shape[0]:
        kind = {1: " (grey)", 3: " (colour)"}.get(channels, "")
        found.append(f"its images have {channels} channels, ours {shape[0]}: write channels={channels}{kind}")
    if size != shape[1]:
        found.append(f"its images are {size}x{size}, ours {shape[1]}x{shape[2]}: write size={size}")
    return found


def _config(start: Start, denoiser: Denoiser) -> list[str]:
    """Of a UNet2DModel: layers of one shape may still be other functions."""
    if not start.config:
        return []
    ours = dict(getattr(denoiser.network, "config", {}))
    if not ours:
        kind = type(denoiser.network).__name__
        return [f"it holds a UNet2DModel, and the model here is a {kind}: name the U-Net that it is"]
    differing = [
        f"{key}={start.config[key]} there, {ours[key]} here"
        for key in sorted(ours.keys() & start.config.keys())
        if key not in _NOT_THE_FUNCTION and _listed(start.config[key]) != _listed(ours[key])
    ]
    if not differing:
        return []
    return [f"another network ({'; '.join(differing)}): name the model that it is (`stepwell ls models`)"]


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tensors(there: dict[str, Tensor], here: dict[str, Tensor]) -> list[str]:
    shapes = [{name: tuple(value.shape) for name, value in part.items()} for part in (there, here)]
    differing = sorted(n for n in shapes[0].keys() | shapes[1].keys() if shapes[0].get(n) != shapes[1].get(n))
    if not differing:
        return []
    first = differing[0]
    was, wanted = (part.get(first, "missing") for part in shapes)
    return [
        f"another network: {len(differing)} tensors differ, the first is {first}, {was} there and {wanted} "
        "here. Name the model that it is, and labels, classes and channels as it had them"
    ]

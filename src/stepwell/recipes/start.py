"""Where fine-tuning starts: the weights that from= names, and whether they fit the network to be trained."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from stepwell.catalogue.build import as_process
from stepwell.core.digest import weights_digest
from stepwell.core.errors import StepwellError, shortened
from stepwell.core.process import NoiseProcess, agree
from stepwell.models.denoiser import Denoiser
from stepwell.models.hub import folder_of
from stepwell.models.lora import merged
from stepwell.recipes.load import saved_recipe
from stepwell.recipes.plan import Plan
from stepwell.recipes.saved_network import network_home, scheduler_home
from stepwell.recipes.schema import BadRecipe, Recipe
from stepwell.runs.directory import RECIPE
from stepwell.train import checkpoint
from stepwell.train.ema import BadAverages, averaged_weights

Shape = tuple[int, int, int]

_NETWORK_SETTINGS = ("model", "learned_variance", "labels", "captions", "super_resolution")
"""Settings that two networks must share to have the same layers."""
_IGNORED_CONFIG = frozenset({"sample_size", "dropout"})
"""Configuration keys of U-Nets that do not affect their outputs."""


class NothingToStartFrom(StepwellError, ValueError):
    """A place without weights, or with weights that cannot be read."""


@dataclass(frozen=True)
class Start:
    """Weights to start from, and what is known of the network that they belong to."""

    title: str
    """Where they are and which they are, for people."""
    tensors: dict[str, Tensor]
    """By the names of a denoiser without adapters."""
    recipe: Recipe | None = None
    """The recipe that trained them, if there is one."""
    config: dict[str, Any] = field(default_factory=dict)
    """The configuration of its network, if diffusers wrote it."""
    process: NoiseProcess | None = None
    shape: Shape | None = None
    """Channels, height, width of its examples."""

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the weights."""
        return weights_digest(self.tensors)


def read_start(where: str) -> Start:
    """The weights that `from=` names, or an error that says what is wrong with them."""
    path = folder_of(where)
    if path.is_file() or checkpoint.is_sharded_checkpoint(path):
        return _from_checkpoint(path, path.parent.parent, checkpoint.load(path))
    if (path / RECIPE).is_file():
        stored, damaged = checkpoint.newest(path / "checkpoints")
        if stored is None:
            why = damaged[0] if damaged else "it was not trained to its first one, or it is a thin record."
            raise NothingToStartFrom(f"{path} has no checkpoint that can be read: {why}")
        return _from_checkpoint(path, path, stored)
    if path.is_dir():
        return _from_pipeline(path)
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=1)
    hint = f" Did you mean {str(path.with_name(near[0]))!r}?" if near else ""
    raise NothingToStartFrom(
        f"there is nothing at {str(path)!r}: name a run directory, a checkpoint (.safetensors), a folder "
        f"that diffusers or `stepwell export` wrote, or hub:ORG/NAME.{hint}"
    )


def _from_checkpoint(path: Path, run: Path, stored: checkpoint.Checkpoint) -> Start:
    """The EMA weights, with adapters merged into their layers."""
    recipe, shape = saved_recipe(run), stored.info.get("example_shape")
    if shape is not None and not (isinstance(shape, list) and [type(size) for size in shape] == [int] * 3):
        raise NothingToStartFrom(f"{path} does not say which shape its images had: it was edited.")
    try:
        weights = averaged_weights(stored.tree["model"], stored.tree["ema"])
    except BadAverages as error:
        raise NothingToStartFrom(f"{path} cannot be started from: {error}") from None
    return Start(
        f"{path}, averaged weights after step {stored.info['step']}",
        merged(weights),
        recipe,
        process=None if recipe is None else as_process(recipe.process),
        shape=None if shape is None else (shape[0], shape[1], shape[2]),
    )


def _from_pipeline(path: Path) -> Start:
    from stepwell.generate.diffusers_io import read_pipeline

    home = network_home(path)
    if home is None:
        raise NothingToStartFrom(
            f"{path} is neither a run directory (it has no {RECIPE}) nor a folder that diffusers wrote."
        )
    pipeline = read_pipeline(home, scheduler_home(path))
    size, channels = (pipeline.config.get(key) for key in ("sample_size", "in_channels"))
    return Start(
        f"{path}, {pipeline.config.get('_class_name')} of diffusers",
        {f"network.{name}": tensor for name, tensor in pipeline.tensors.items()},
        config=pipeline.config,
        process=pipeline.process,
        shape=(channels, size, size) if isinstance(size, int) and isinstance(channels, int) else None,
    )


def digest_at(where: str) -> str:
    """The digest of the weights at a place, read once as long as its files stay as they are."""
    path = folder_of(where)
    files = sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]
    stamps = tuple((str(file), file.stat().st_mtime_ns) for file in files if file.exists())
    return _digest(where, stamps)


@lru_cache(maxsize=8)
def _digest(where: str, stamps: tuple[tuple[str, int], ...]) -> str:
    return read_start(where).digest


def require_fit(start: Start, plan: Plan, denoiser: Denoiser, shape: Shape) -> None:
    """Refuse weights of another network, process, prediction or image size, naming every difference."""
    recipe = plan.recipe
    mistakes = [*_other_settings(start, recipe), *_other_process(start, plan), *_other_shape(start, shape)]
    mistakes += _other_config(start, denoiser)
    if not mistakes:
        # Otherwise these would be the same mistakes again, as names of layers.
        mistakes = other_tensors(start.tensors, denoiser.state_dict())
    if recipe.start_digest and recipe.start_digest != start.digest:
        mistakes.append(
            f"its weights have the digest {start.digest}, and {recipe.start_digest} was asked for: they have "
            "changed. Leave start_digest out to take these, with another out="
        )
    if mistakes:
        raise BadRecipe(f"from={recipe.start} ({start.title})", mistakes)


def _other_settings(start: Start, recipe: Recipe) -> list[str]:
    if start.recipe is None:
        return []
    settings = [(key, getattr(start.recipe, key), getattr(recipe, key)) for key in _NETWORK_SETTINGS]
    mistakes = [
        f"{key}={_word(there)} there, {_word(here)} here: write {key}={_word(there)}"
        for key, there, here in settings
        if there != here
    ]
    theirs, ours = start.recipe.text_digest, recipe.text_digest
    if theirs and ours and theirs != ours:
        mistakes.append(
            f"its captions were embedded by another text encoder (digest {theirs}; this one has {ours}): "
            f"write text_encoder={start.recipe.text_encoder}"
        )
    return mistakes


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _other_process(start: Start, plan: Plan) -> list[str]:
    there, here, spec = start.process, plan.process, plan.recipe.process
    if there is None or agree(there, here, inputs=True):
        return []
    if start.recipe is not None:
        return [f"process={start.recipe.process} there, {spec} here: write process={start.recipe.process}"]
    said, ours = (getattr(one, "prediction", None) for one in (there, here))
    if said != ours:
        return [f"its network predicts {said}, ours {ours}: write process={spec}:prediction={said}"]
    return [f"it was trained on {there}, not on process={spec}: give its process"]


def _other_shape(start: Start, shape: Shape) -> list[str]:
    if start.shape is None or start.shape == shape:
        return []
    channels, size, _ = start.shape
    mistakes = []
    if channels != shape[0]:
        kind = {1: " (grey)", 3: " (colour)"}.get(channels, "")
        mistakes.append(
            f"its images have {channels} channels, ours {shape[0]}: write channels={channels}{kind}"
        )
    if size != shape[1]:
        mistakes.append(f"its images are {size}x{size}, ours {shape[1]}x{shape[2]}: write size={size}")
    return mistakes


def _other_config(start: Start, denoiser: Denoiser) -> list[str]:
    """Differences between networks of diffusers: layers of one shape may still compute other functions."""
    if not start.config:
        return []
    ours = dict(getattr(denoiser.network, "config", {}))
    if not ours:
        kind = type(denoiser.network).__name__
        theirs = start.config.get("_class_name")
        return [f"it holds a {theirs}, and the model here is a {kind}: leave model= out, or name what it is"]
    differing = [
        f"{key}={start.config[key]} there, {ours[key]} here"
        for key in sorted(ours.keys() & start.config.keys())
        if key not in _IGNORED_CONFIG and key[0] != "_" and _listed(start.config[key]) != _listed(ours[key])
    ]
    if not differing:
        return []
    return [
        f"another network ({shortened('; '.join(differing))}): leave model= out, or name the one that it is"
    ]


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def other_tensors(there: dict[str, Tensor], here: dict[str, Tensor]) -> list[str]:
    """What differs in names and shapes between two networks, in a sentence; nothing if they agree."""
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

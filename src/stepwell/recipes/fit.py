"""Whether weights fit the network that is to start from them: every mistake at once, and what to write."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stepwell.core.agreement import agree
from stepwell.core.process import NoiseProcess
from stepwell.models.denoiser import Denoiser
from stepwell.recipes.load import BadRecipe
from stepwell.recipes.schema import Recipe
from stepwell.recipes.start import Shape, Start

_SAME = ("model", "learned_variance", "labels", "super_resolution")
"""Settings that make a network what it is."""
_NOT_THE_FUNCTION = frozenset({"sample_size", "dropout"})
"""Of a UNet2DModel: what changes no answer."""


def require_fit(
    start: Start, recipe: Recipe, denoiser: Denoiser, process: NoiseProcess, shape: Shape
) -> None:
    """Refuse weights of another network, process, prediction or image size, by name."""
    found = [*_settings(start, recipe), *_process(start, process, recipe), *_shape(start, shape)]
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


def _settings(start: Start, recipe: Recipe) -> list[str]:
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

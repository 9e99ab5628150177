"""The network of a recipe: built for its data, begun from other weights, with adapters if it has them."""

from __future__ import annotations

import torch

from stepwell.catalogue.build import as_process
from stepwell.core.errors import StepwellError
from stepwell.core.tick import stream_key
from stepwell.data.source import DataSet
from stepwell.models import lora
from stepwell.models.denoiser import Conditioning, Denoiser
from stepwell.models.registry import build_model
from stepwell.recipes.schema import Recipe
from stepwell.recipes.start import Start, require_fit


def network_of(recipe: Recipe, data: DataSet, start: Start | None = None) -> Denoiser:
    """The network, with the weights of `start` or initialised from the recipe's seed."""
    shape = data.train.shape
    channels, height, width = shape
    if height != width:
        raise StepwellError(f"images must be square for now, not {height}x{width}: give size=N.")
    torch.manual_seed(stream_key(recipe.seed, "weights"))
    denoiser = build_model(
        recipe.model,
        channels=channels,
        image_size=height,
        classes=_classes(recipe, data),
        label_dropout=recipe.label_dropout,
        extra_channels=_extra_channels(recipe, data),
        learned_variance=recipe.learned_variance,
        dropout=recipe.dropout,
    )
    if start is not None:
        require_fit(start, recipe, denoiser, as_process(recipe.process), shape)
        denoiser.load_state_dict(start.tensors)
    if recipe.lora:
        torch.manual_seed(stream_key(recipe.seed, "adapters"))
        lora.inject(denoiser.network, recipe.lora)
    return denoiser


def _classes(recipe: Recipe, data: DataSet) -> int:
    if not recipe.labels:
        return 0
    found = data.train.classes
    if recipe.classes is not None and recipe.classes < found:
        raise StepwellError(f"{data.train.name} has {found} classes: classes={recipe.classes} is too few.")
    return recipe.classes or found


def _extra_channels(recipe: Recipe, data: DataSet) -> int:
    if recipe.super_resolution and data.latents is not None:
        raise StepwellError(
            f"super_resolution={recipe.super_resolution} reduces images, and {data.train.name} has latents: "
            "train on the images, or leave it out."
        )
    return Conditioning(recipe.super_resolution).extra_channels(data.train.shape)

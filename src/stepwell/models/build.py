"""From a name to a network: every family behind one call."""

from __future__ import annotations

from typing import Any

from stepwell.core import require
from stepwell.models.denoiser import Denoiser, Task
from stepwell.models.entries import MODELS


def build(
    name: str,
    *,
    channels: int,
    image_size: int,
    classes: int = 0,
    label_dropout: float = 0.0,
    extra_channels: int = 0,
    learned_variance: bool = False,
    dropout: float = 0.0,
) -> Denoiser:
    """A named network for images [B, channels, image_size, image_size]."""
    entry = MODELS[require.one_of("model", name, tuple(MODELS))]
    task = Task(channels, image_size, classes, extra_channels, learned_variance, dropout)
    return Denoiser(_network(entry.family, name, task), classes, label_dropout, learned_variance)


def _network(family: str, name: str, task: Task) -> Any:
    # Imported here: a U-ViT needs no diffusers, whose import takes seconds.
    match family:
        case "uvit":
            from stepwell.models import uvit

            return uvit.network(name, task)
        case "dit":
            from stepwell.models import dit

            return dit.network(name, task)
        case _:
            from stepwell.models import unet

            return unet.network(name, task)

"""Every network that a recipe can name. Plain values: listing them imports nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelEntry:
    """A named network."""

    name: str
    family: str
    """unet, uvit or dit: the file in `models` that builds it."""
    summary: str
    source: str = "Stepwell"


_ENTRIES = (
    ModelEntry("micro", "unet", "for tests: learns next to nothing, costs next to nothing"),
    ModelEntry("tiny", "unet", "16x16 grey images on a laptop"),
    ModelEntry("small", "unet", "16x16 to 32x32 images on a workstation"),
    ModelEntry("ddpm-cifar10", "unet", "DDPM's CIFAR-10 network, 35.7 M parameters", "Ho et al. 2020"),
)

MODELS = {entry.name: entry for entry in _ENTRIES}

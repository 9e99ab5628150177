"""The networks that a recipe can name, and how they are built. Listing them does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell.core import require
from stepwell.core.errors import InvalidParameter

if TYPE_CHECKING:
    from stepwell.models.denoiser import Denoiser, TextShape

SAVED = "diffusers"
"""What a recipe calls a network that is none of ours, but was saved by diffusers."""


@dataclass(frozen=True)
class ModelEntry:
    """A named network."""

    name: str
    family: str
    """unet, text_unet, uvit or dit: the module of `models` whose `network(name, spec)` builds it."""
    summary: str
    source: str = "Stepwell"
    made_for: tuple[int, int, int] | None = None
    """Channels, height and width of the examples (images or latents) that it was published for."""

    @property
    def takes_text(self) -> bool:
        """Whether it is told captions instead of labels."""
        return self.family == "text_unet"


_ADM = "Dhariwal and Nichol 2021"
_UVIT = "Bao et al. 2023"
_DIT = "Peebles and Xie 2023"

_ENTRIES = (
    ModelEntry("micro", "unet", "for tests: learns next to nothing, costs next to nothing"),
    ModelEntry("tiny", "unet", "16x16 grey images on a laptop"),
    ModelEntry("small", "unet", "16x16 to 32x32 images on a workstation"),
    ModelEntry(
        "ddpm-cifar10", "unet", "DDPM's CIFAR-10 network, 35.7 M parameters", "Ho et al. 2020", (3, 32, 32)
    ),
    ModelEntry(
        "ldm-celebahq",
        "unet",
        "LDM's, for 64x64x3 latents of faces, 274 M",
        "Rombach et al. 2022",
        (3, 64, 64),
    ),
    ModelEntry("adm-small", "unet", "ADM's kind of U-Net for 32x32 images, 8 M", _ADM),
    ModelEntry("adm-imagenet64", "unet", "ADM for 64x64 images of a class, 296 M", _ADM, (3, 64, 64)),
    ModelEntry("adm-imagenet256", "unet", "ADM for 256x256 images of a class, 554 M", _ADM, (3, 256, 256)),
    ModelEntry("text-tiny", "text_unet", "16x16 images with captions on a laptop"),
    ModelEntry("text-small", "text_unet", "32x32 to 64x64 images or latents with captions on a GPU"),
    ModelEntry("uvit-tiny", "uvit", "8x8 latents or 16x16 images on a laptop, 1.1 M", _UVIT),
    ModelEntry("uvit-s", "uvit", "U-ViT-S, 44 M: CIFAR-10", _UVIT, (3, 32, 32)),
    ModelEntry("uvit-s-deep", "uvit", "U-ViT-S (deep), 58 M", _UVIT),
    ModelEntry("uvit-m", "uvit", "U-ViT-M, 131 M: 64x64 images in patches of 4", _UVIT),
    ModelEntry("uvit-l", "uvit", "U-ViT-L/2, 287 M: 32x32x4 latents", _UVIT, (4, 32, 32)),
    ModelEntry("uvit-h", "uvit", "U-ViT-H/2, 501 M: 32x32x4 latents", _UVIT, (4, 32, 32)),
    ModelEntry(
        "uvit-imagenet",
        "uvit",
        "Table 9's width 1152 at depth 12, 225 M: not a size of U-ViT",
        "Kim et al. 2025",
        (4, 32, 32),
    ),
    ModelEntry("dit-s-2", "dit", "DiT-S/2, 33 M: 32x32x4 latents", _DIT, (4, 32, 32)),
    ModelEntry("dit-b-2", "dit", "DiT-B/2, 130 M: 32x32x4 latents", _DIT, (4, 32, 32)),
    ModelEntry("dit-l-2", "dit", "DiT-L/2, 458 M: 32x32x4 latents", _DIT, (4, 32, 32)),
    ModelEntry("dit-xl-2", "dit", "DiT-XL/2, 675 M: 32x32x4 latents", _DIT, (4, 32, 32)),
)

MODELS = {entry.name: entry for entry in _ENTRIES}
TEXT_MODELS = tuple(entry.name for entry in _ENTRIES if entry.takes_text)


def build_model(
    name: str,
    *,
    channels: int,
    image_size: int,
    classes: int = 0,
    label_dropout: float = 0.0,
    extra_channels: int = 0,
    learned_variance: bool = False,
    dropout: float = 0.0,
    text: TextShape | None = None,
    config: Mapping[str, Any] | None = None,
) -> Denoiser:
    """A named network for images [B, channels, image_size, image_size].

    With `text`, labels are numbers of texts; `config` is the configuration of a network named `diffusers`.
    """
    from stepwell.models.denoiser import Denoiser, NetworkSpec

    spec = NetworkSpec(channels, image_size, classes, extra_channels, learned_variance, dropout, text)
    if config is not None:
        from stepwell.models.of_diffusers import denoiser

        return denoiser(config, spec, label_dropout)
    entry = MODELS[require.one_of("model", name, tuple(MODELS))]
    if text is not None and not entry.takes_text:
        raise InvalidParameter(f"model {name} cannot be told captions: take one of {', '.join(TEXT_MODELS)}.")
    # Only the family's own module: diffusers takes seconds to import, and a U-ViT does not need it.
    network = import_module(f"stepwell.models.{entry.family}").network(name, spec)
    return Denoiser(network, classes, label_dropout, learned_variance)

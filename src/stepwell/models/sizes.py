"""The named networks, all of them diffusers' own UNet2DModel, so that a pipeline can load them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from diffusers import UNet2DModel

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.models.denoiser import Denoiser


@dataclass(frozen=True)
class Size:
    """A shape of UNet2DModel."""

    summary: str
    channels: tuple[int, ...]
    layers: int
    attention: tuple[int, ...] = ()
    """Which levels, from the finest, have attention."""
    settings: dict[str, Any] = field(default_factory=dict)


SIZES = {
    "micro": Size(
        "for tests: learns next to nothing, costs next to nothing", (8, 16), 1, (), {"norm_num_groups": 4}
    ),
    "tiny": Size("16x16 grey images on a laptop", (16, 32, 32), 1, (), {"norm_num_groups": 8}),
    "small": Size("16x16 to 32x32 images on a workstation", (32, 64, 64), 2, (2,), {"norm_num_groups": 8}),
    "ddpm-cifar10": Size(
        "DDPM's CIFAR-10 network, 35.7 M parameters (Ho et al. 2020)",
        (128, 256, 256, 256),
        2,
        (1,),
        {
            "norm_num_groups": 32,
            "norm_eps": 1e-6,
            "downsample_padding": 0,
            "flip_sin_to_cos": False,
            "freq_shift": 1,
            "attention_head_dim": None,
            "add_attention": True,
        },
    ),
}


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
    """A network of a named size for images of this shape."""
    size = SIZES[require.one_of("model", name, tuple(SIZES))]
    halvings = 2 ** (len(size.channels) - 1)
    if image_size % halvings:
        raise InvalidParameter(
            f"model {name} halves images {len(size.channels) - 1} times: their size must be a multiple of "
            f"{halvings}, not {image_size}. Resize the data (size=...) or take a model with fewer levels."
        )
    levels = range(len(size.channels))
    settings: dict[str, Any] = {"add_attention": bool(size.attention), **size.settings}
    network = UNet2DModel(
        sample_size=image_size,
        in_channels=channels + extra_channels,
        out_channels=channels * (2 if learned_variance else 1),
        layers_per_block=size.layers,
        block_out_channels=size.channels,
        down_block_types=tuple("AttnDownBlock2D" if k in size.attention else "DownBlock2D" for k in levels),
        up_block_types=tuple(
            "AttnUpBlock2D" if k in size.attention else "UpBlock2D" for k in reversed(levels)
        ),
        dropout=dropout,
        # One label more than classes: the label of no class, for guidance.
        num_class_embeds=classes + 1 if classes else None,
        **settings,
    )
    return Denoiser(network, classes, label_dropout, learned_variance)

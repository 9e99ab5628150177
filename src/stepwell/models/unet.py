"""The named U-Nets, all of them diffusers' own UNet2DModel, so that a pipeline can load them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from diffusers import UNet2DModel
from diffusers.models.attention_processor import Attention
from diffusers.models.resnet import ResnetBlock2D
from torch import nn

from stepwell.core.errors import InvalidParameter
from stepwell.models.denoiser import NetworkSpec


@dataclass(frozen=True)
class Size:
    """A shape of UNet2DModel."""

    channels: tuple[int, ...]
    layers: int
    attention: tuple[int, ...] = ()
    """Which levels, from the finest, have attention."""
    settings: dict[str, Any] = field(default_factory=dict)
    residual_resampling: bool = False
    """Residual blocks change the resolution (ADM), not single convolutions (DDPM)."""
    starts_at_zero: bool = False
    """Every block starts as the identity, and the output at 0 (DDPM, LDM, ADM); diffusers leaves this out."""


_DDPM = {
    "norm_num_groups": 32,
    "norm_eps": 1e-6,
    "downsample_padding": 0,
    "flip_sin_to_cos": False,
    "freq_shift": 1,
    "attention_head_dim": None,
    "add_attention": True,
}

_ADM = {
    "norm_num_groups": 32,
    "attention_head_dim": 64,
    "resnet_time_scale_shift": "scale_shift",
    # Without it diffusers leaves out the normalisation before the attention in the middle.
    "attn_norm_num_groups": 32,
    "add_attention": True,
}

SIZES = {
    "micro": Size((8, 16), 1, (), {"norm_num_groups": 4}),
    "tiny": Size((16, 32, 32), 1, (), {"norm_num_groups": 8}),
    "small": Size((32, 64, 64), 2, (2,), {"norm_num_groups": 8}),
    "ddpm-cifar10": Size((128, 256, 256, 256), 2, (1,), _DDPM, starts_at_zero=True),
    "ldm-celebahq": Size((224, 448, 672, 896), 2, (1, 2, 3), {"attention_head_dim": 32}, starts_at_zero=True),
    "adm-small": Size((64, 128, 128), 2, (1, 2), _ADM, True, True),
    "adm-imagenet64": Size((192, 384, 576, 768), 3, (1, 2, 3), _ADM, True, True),
    "adm-imagenet256": Size((256, 256, 512, 512, 1024, 1024), 2, (3, 4, 5), _ADM, True, True),
}
"""Widths, blocks and levels with attention, from the papers that `registry` names.

UNet2DModel expresses ADM: its parameters are ADM's, plus the one label of no class (768 numbers in
adm-imagenet64, 1,024 in adm-imagenet256).
"""


def network(name: str, spec: NetworkSpec, size: Size | None = None) -> UNet2DModel:
    """The U-Net of this name, or of any other size."""
    size = size or SIZES[name]
    require_halvings(name, len(size.channels) - 1, spec.image_size)
    levels = range(len(size.channels))
    down, up = ("DownBlock2D", "UpBlock2D")
    settings: dict[str, Any] = {"add_attention": bool(size.attention), **size.settings}
    if size.residual_resampling:
        down, up = ("ResnetDownsampleBlock2D", "ResnetUpsampleBlock2D")
        settings |= {"downsample_type": "resnet", "upsample_type": "resnet"}
    unet = UNet2DModel(
        sample_size=spec.image_size,
        in_channels=spec.channels_in,
        out_channels=spec.channels_out,
        layers_per_block=size.layers,
        block_out_channels=size.channels,
        down_block_types=tuple("AttnDownBlock2D" if k in size.attention else down for k in levels),
        up_block_types=tuple("AttnUpBlock2D" if k in size.attention else up for k in reversed(levels)),
        dropout=spec.dropout,
        num_class_embeds=spec.classes + 1 if spec.classes else None,
        **settings,
    )
    if size.starts_at_zero:
        _start_at_zero(unet)
    return unet


def require_halvings(name: str, times: int, image_size: int) -> None:
    """Refuse images that cannot be halved so often."""
    if image_size % 2**times:
        raise InvalidParameter(
            f"model {name} halves images {times} times: their size must be a multiple of {2**times}, not "
            f"{image_size}. Resize the data (size=...) or take a model with fewer levels."
        )


def _start_at_zero(unet: UNet2DModel) -> None:
    """Zero the last layer of every block and of the network."""
    for module in unet.modules():
        if isinstance(module, ResnetBlock2D):
            _zero(module.conv2)
        elif isinstance(module, Attention):
            _zero(module.to_out[0])
    _zero(unet.conv_out)


def _zero(layer: Any) -> None:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)

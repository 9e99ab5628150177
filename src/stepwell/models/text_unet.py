"""U-Nets that are told a text by cross attention: diffusers' UNet2DConditionModel (Rombach et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor

from stepwell.core.errors import InvalidParameter
from stepwell.core.tensors import PerExample
from stepwell.models.denoiser import NetworkSpec
from stepwell.models.unet import require_halvings


@dataclass(frozen=True)
class Size:
    """A shape of UNet2DConditionModel."""

    channels: tuple[int, ...]
    layers: int
    attention: tuple[int, ...]
    """Which levels, from the finest, have attention to the image and to the text."""
    groups: int
    head: int
    """Channels of an attention head."""


SIZES = {
    "text-tiny": Size((16, 32, 32), 1, (1, 2), 8, 8),
    "text-small": Size((64, 128, 256), 2, (1, 2), 32, 32),
}


_ON_DEVICE_BYTES = 1 << 30
"""Tables up to this size lie beside the network; larger ones stay on the host, perhaps mapped from disk."""


class TextUNet(UNet2DConditionModel):  # type: ignore[misc]
    """A U-Net whose labels are numbers of texts: label k stands for row k of a table of embedded texts.

    So dropout of labels, guidance and everything else that labels have works on texts as it is. The last row
    is the empty text, which stands for no text.
    """

    texts: Tensor | None = None
    """[N + 1, tokens, width] of a frozen encoder, not part of the weights."""

    @property
    def takes_text(self) -> bool:
        """Whether any of its blocks has cross attention."""
        kinds = (*self.config.down_block_types, self.config.mid_block_type, *self.config.up_block_types)
        return any("CrossAttn" in str(kind) for kind in kinds)

    def fit(self, spec: NetworkSpec) -> None:
        """Refuse texts that it cannot read; take zeros for them until they are embedded."""
        if self.takes_text and spec.text is None:
            raise InvalidParameter(
                "this UNet2DConditionModel has cross attention to texts, and there are none: write "
                "captions=true and text_encoder=FOLDER."
            )
        if spec.text is None:
            return
        if not self.takes_text:
            raise InvalidParameter(
                "this UNet2DConditionModel has no cross attention, so it cannot be told captions: leave "
                "captions out."
            )
        if self.config.cross_attention_dim != spec.text.width:
            raise InvalidParameter(
                f"this network reads texts of width {self.config.cross_attention_dim}, and those of the "
                f"text encoder have {spec.text.width}: give the encoder that it was trained with."
            )
        self.texts = torch.zeros(1, *spec.text).expand(spec.classes + 1, -1, -1)

    def forward(self, sample: Tensor, timestep: PerExample, class_labels: PerExample | None = None) -> Any:
        """Images [B, C, H, W], times [B], numbers of texts (or labels) [B] -> .sample [B, C', H, W]."""
        if self.texts is None:
            return super().forward(sample, timestep, None, class_labels=class_labels)
        assert class_labels is not None, "the denoiser has a label for no text"
        if self.texts.nbytes <= _ON_DEVICE_BYTES:
            self.texts = self.texts.to(sample.device)
        rows = self.texts.index_select(0, class_labels.to(self.texts.device))
        return super().forward(sample, timestep, rows.to(sample.device, sample.dtype))


def network(name: str, spec: NetworkSpec) -> TextUNet:
    """The U-Net of this name, its cross attention as wide as the texts."""
    size = SIZES[name]
    require_halvings(name, len(size.channels) - 1, spec.image_size)
    if spec.text is None:
        raise InvalidParameter(
            f"model {name} is told texts: write captions=true and text_encoder=FOLDER, or name a model "
            "without text- in its name."
        )
    levels = range(len(size.channels))
    unet = TextUNet(
        sample_size=spec.image_size,
        in_channels=spec.channels_in,
        out_channels=spec.channels_out,
        layers_per_block=size.layers,
        block_out_channels=size.channels,
        down_block_types=tuple(
            "CrossAttnDownBlock2D" if k in size.attention else "DownBlock2D" for k in levels
        ),
        up_block_types=tuple(
            "CrossAttnUpBlock2D" if k in size.attention else "UpBlock2D" for k in reversed(levels)
        ),
        norm_num_groups=size.groups,
        # diffusers' name for the number of heads; a list of one for each level.
        attention_head_dim=tuple(max(1, width // size.head) for width in size.channels),
        cross_attention_dim=spec.text.width,
        dropout=spec.dropout,
    )
    unet.fit(spec)
    return unet

"""Networks that diffusers saved, built from their own configuration and called like ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import DiTTransformer2DModel, UNet2DConditionModel, UNet2DModel
from torch import Tensor, nn

from stepwell.core.errors import StepwellError, Unsupported
from stepwell.core.tensors import PerExample
from stepwell.models.denoiser import Denoiser, NetworkSpec
from stepwell.models.hub import REFUSED
from stepwell.models.text_unet import TextUNet

PLAIN = (UNet2DModel, UNet2DConditionModel, DiTTransformer2DModel)
"""The classes of diffusers whose folders can be started from and written."""
_MORE_THAN_TEXT = ("addition_embed_type", "encoder_hid_dim_type", "encoder_hid_dim", "class_embed_type")
"""Settings of U-Nets that want inputs which no data here have: SDXL's sizes, images, embedded classes."""


class BadNetwork(StepwellError, ValueError):
    """A configuration of a network that cannot be built, or that the data do not fit."""


class LabelledDiT(DiTTransformer2DModel):  # type: ignore[misc]
    """diffusers' DiT unchanged: each block embeds time and label; without labels all images share one."""

    def forward(self, sample: Tensor, timestep: PerExample, class_labels: PerExample | None = None) -> Any:
        """Images [B, C, H, W], times [B], labels [B] -> .sample [B, C', H, W]."""
        if class_labels is None:
            class_labels = torch.zeros(len(sample), dtype=torch.long, device=sample.device)
        return super().forward(sample, timestep.expand(len(sample)), class_labels)


_KINDS: dict[str, type[Any]] = {
    "UNet2DModel": UNet2DModel,
    "UNet2DConditionModel": TextUNet,
    "DiTTransformer2DModel": LabelledDiT,
}


def denoiser(config: Mapping[str, Any], spec: NetworkSpec, label_dropout: float = 0.0) -> Denoiser:
    """The network of a config.json for data that it fits, or why it does not."""
    kind = config.get("_class_name")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadNetwork(f"a network of the class {kind} cannot be trained here: only {', '.join(_KINDS)}.")
    settings = {name: value for name, value in config.items() if not name.startswith("_")}
    try:
        network = _KINDS[kind].from_config({**settings, "dropout": spec.dropout})
    except REFUSED as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise BadNetwork(
            f"the config.json of this {kind} makes no network ({said}): save it again."
        ) from error
    _require_shape(kind, network, spec)
    if isinstance(network, LabelledDiT):
        # The table keeps its row for no class. The denoiser drops labels: two dropouts would add up.
        for block in network.transformer_blocks:
            block.norm1.emb.class_embedder.dropout_prob = 0.0
        return Denoiser(
            network, _known(network.config.num_embeds_ada_norm, spec), label_dropout, spec.learned_variance
        )
    _require_inputs(kind, network)
    if isinstance(network, TextUNet):
        network.fit(spec)
        if spec.text is not None:
            return Denoiser(network, spec.classes, label_dropout, spec.learned_variance)
    classes = _of_rows(kind, network.config.num_class_embeds or 0, spec, label_dropout)
    return Denoiser(network, classes, label_dropout, spec.learned_variance)


def plain_network(network: nn.Module, tensors: Mapping[str, Tensor]) -> Any:
    """diffusers' own class for one of these networks, with other weights."""
    plain = next(kind for kind in PLAIN if isinstance(network, kind)).from_config(network.config)
    plain.load_state_dict(tensors)
    return plain


def _require_shape(kind: str, network: Any, spec: NetworkSpec) -> None:
    channels, out = network.config.in_channels, network.config.out_channels or network.config.in_channels
    if (channels, out) != (spec.channels_in, spec.channels_out):
        raise BadNetwork(
            f"this {kind} takes {channels} channels and makes {out}, and the data need {spec.channels_in} "
            f"and {spec.channels_out}: write channels={channels}, or give data of its kind (images, latents)."
        )
    if isinstance(network, LabelledDiT):
        fits, wanted = spec.image_size == network.config.sample_size, f"{network.config.sample_size}"
    else:
        halvings = 2 ** (len(network.config.block_out_channels) - 1)
        fits, wanted = spec.image_size % halvings == 0, f"a multiple of {halvings}"
    if not fits:
        raise BadNetwork(
            f"the images of this {kind} must have the size {wanted}, not {spec.image_size}: write size=... "
            "(of latents: encode other images)."
        )


def _require_inputs(kind: str, network: Any) -> None:
    more = [name for name in _MORE_THAN_TEXT if network.config.get(name) is not None]
    if more:
        raise Unsupported(
            f"this {kind} wants inputs that no data here have ({more[0]}={network.config[more[0]]}): train "
            "it in a trainer made for it, with the pacer (docs/integrations)."
        )


def _known(classes: int, spec: NetworkSpec) -> int:
    """The classes of a DiT, if the data have no more; the row after them is that of no class."""
    if spec.classes > classes:
        raise BadNetwork(f"this DiT has {classes} classes, the data {spec.classes}: leave some out.")
    return classes


def _of_rows(kind: str, rows: int, spec: NetworkSpec, label_dropout: float) -> int:
    """The label of no class among a U-Net's embedded labels: the last one, or none if all are classes."""
    if bool(rows) != bool(spec.classes):
        said = f"embeds {rows} labels: write labels=true" if rows else "has no labels: write labels=false"
        raise BadNetwork(f"this {kind} {said}.")
    if spec.classes > rows:
        raise BadNetwork(f"this {kind} embeds {rows} labels, and the data have {spec.classes} classes.")
    if rows and spec.classes == rows and label_dropout:
        raise BadNetwork(
            f"this {kind} embeds {rows} labels, all of them classes of the data: none is left for images "
            "without a class. Write label_dropout=0."
        )
    return rows if spec.classes == rows else rows - 1

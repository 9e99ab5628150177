"""What an encode will make: decided before the first image is encoded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Protocol, cast

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.data.latent_manifest import Plan
from stepwell.data.source import BadData, DataSet, ImageSource

_DIGESTED = 64
"""Images of each split that tell one data set from another; reading all of them would cost an epoch."""
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


class Encoder(Protocol):
    """Images [B, C, H, W] in [-1, 1] to mean and deviation of their latents."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def factor(self) -> int: ...
    @property
    def posterior(self) -> bool: ...
    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True)
class Storage:
    """How latents are stored, and scaled when they are read."""

    dtype: str = "fp16"
    shard: int = 4096
    """Images in a shard."""
    scale: str = "channel"
    """channel: each to mean 0 and deviation 1; global: one factor (LDM); or that factor."""

    def __post_init__(self) -> None:
        require.one_of("dtype", self.dtype, tuple(DTYPES))
        require.count("shard", self.shard)
        if self.scale not in ("channel", "global"):
            try:
                known = 0 < float(self.scale) < float("inf")
            except ValueError:
                known = False
            if not known:
                raise InvalidParameter(f"scale must be channel, global or a factor, not {self.scale!r}.")


def plan_of(spec: str, data: DataSet, encoder: Encoder, storage: Storage) -> Plan:
    """What an encode will make; images that do not fit the autoencoder are refused here."""
    if data.latents is not None:
        raise BadData(f"{spec} already is a folder of latents: give the images they were made of.")
    source = cast(ImageSource, data.train)
    channels, height, width = source.shape
    factor = encoder.factor
    if height % factor or width % factor:
        better = max(factor, height // factor * factor)
        raise BadData(
            f"{source.name} has images of {height}x{width} pixels, and {encoder.name} makes one latent of "
            f"{factor}x{factor}: give a size that is a multiple of {factor}, such as --size {better}."
        )
    return Plan(
        data=spec,
        data_digest=_digest(data),
        autoencoder=encoder.name,
        fingerprint=encoder.fingerprint,
        posterior=encoder.posterior,
        image_shape=(channels, height, width),
        latent_shape=(encoder.channels, height // factor, width // factor),
        train=len(data.train),
        held_out=len(data.held_out),
        classes=source.classes if source.labels is not None else 0,
        mirrored=source.flips,
        **asdict(storage),
    )


def _digest(data: DataSet) -> str:
    """Of all labels and some images of both splits."""
    total = sha256()
    for split in (data.train, data.held_out):
        source = cast(ImageSource, split)
        rows = torch.linspace(0, len(source) - 1, min(_DIGESTED, len(source))).round().long()
        total.update(f"{len(source)} {source.shape}".encode())
        total.update(source.fetch(rows).contiguous().numpy().data)
        if source.labels is not None:
            total.update(source.labels.contiguous().numpy().data)
    return total.hexdigest()

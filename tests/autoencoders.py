"""Autoencoders for tests: one that is a formula, and random ones of diffusers' classes, a few kB each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

KINDS = ("AutoencoderKL", "AutoencoderTiny", "VQModel")
FACTOR = {"AutoencoderKL": 2, "AutoencoderTiny": 2, "VQModel": 2}


@dataclass
class MeanOfTiles:
    """The mean of each 4x4 tile plus twice the channel, with a fixed deviation; it counts what it encodes."""

    name: str = "tiles"
    fingerprint: str = "f" * 64
    channels: int = 3
    factor: int = 4
    posterior: bool = True
    deviation: float = 0.25
    fails_at: int = -1
    seen: list[int] = field(default_factory=list)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.fails_at >= 0 and len(self.seen) == self.fails_at:
            raise KeyboardInterrupt
        self.seen.append(len(images))
        mean = F.avg_pool2d(images, self.factor) + 2 * torch.arange(3.0)[:, None, None]
        return mean, torch.full_like(mean, self.deviation) if self.posterior else None


def saved(kind: str, folder: Path, seed: int = 0) -> Path:
    """A random network of a class of diffusers, as save_pretrained writes it."""
    from diffusers import AutoencoderKL, AutoencoderTiny, VQModel

    torch.manual_seed(seed)
    ends = {"in_channels": 3, "out_channels": 3}
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    if kind == "AutoencoderKL":
        network = AutoencoderKL(
            **ends, **blocks, block_out_channels=(4, 8), latent_channels=4, norm_num_groups=2
        )
    elif kind == "VQModel":
        network = VQModel(
            **ends, **blocks, block_out_channels=(4, 8), latent_channels=3, num_vq_embeddings=16,
            norm_num_groups=2,
        )  # fmt: skip
    else:
        network = AutoencoderTiny(
            **ends,
            encoder_block_out_channels=(8, 8),
            decoder_block_out_channels=(8, 8),
            num_encoder_blocks=(1, 1),
            num_decoder_blocks=(1, 1),
            latent_channels=4,
        )
    network.save_pretrained(folder)
    return folder

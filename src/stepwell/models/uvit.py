"""U-ViT: a vision transformer with a U-Net's long skips (Bao et al. 2023, "All are Worth Words").

Time, label and patches are all tokens of one sequence. Written from the paper; diffusers' UVit2DModel is
another network (aMUSEd's, of discrete codes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from stepwell.core.tensors import PerExample
from stepwell.models.denoiser import NetworkOutput, NetworkSpec, patches_across


@dataclass(frozen=True)
class Size:
    """A shape of U-ViT."""

    width: int
    depth: int
    """Blocks beside the one in the middle: the paper's layers less one."""
    heads: int
    patch: int = 2
    smooth: bool = True
    """A 3x3 convolution over the finished image, against seams between patches."""


SIZES = {
    "uvit-tiny": Size(128, 4, 4),
    "uvit-s": Size(512, 12, 8),
    "uvit-s-deep": Size(512, 16, 8),
    "uvit-m": Size(768, 16, 12, patch=4),
    "uvit-l": Size(1024, 20, 16),
    # The published configuration of H on latents has no convolution at the end (500,832,016 parameters).
    "uvit-h": Size(1152, 28, 16, smooth=False),
    # Kim et al. 2025, Table 9: H's width with depth 12. Section 6.2 says U-ViT and Table 5 says ADM; a
    # published U-ViT of this width has depth 28 (`uvit-h`). We build what Table 9 prints, otherwise as H.
    "uvit-imagenet": Size(1152, 12, 16, smooth=False),
}
"""The configurations of Bao et al. 2023, with the patch of the data set where its parameters are quoted."""


def patchify(images: Tensor, patch: int) -> Tensor:
    """[B, C, H, W] -> [B, (H / p) (W / p), C p p], row by row."""
    blocks: Tensor = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # [B, C, rows, p, columns, p]
    return blocks.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(tokens: Tensor, patch: int, rows: int) -> Tensor:
    """The inverse of `patchify`: [B, N, C p p] -> [B, C, H, W]."""
    # [B, rows, columns, C, p, p]
    blocks: Tensor = tokens.unflatten(2, (-1, patch, patch)).unflatten(1, (rows, -1))
    return blocks.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def sinusoids(time: PerExample, width: int) -> Tensor:
    """[B, width] cosines and sines of time, periods 2 pi to 20000 pi (Vaswani et al. 2017).

    Any real time has a value: discrete steps are whole numbers, flows and EDM have all of them.
    """
    half = width // 2
    exponents = torch.arange(half, device=time.device, dtype=torch.float32) / half
    angles = time.to(torch.float32)[:, None] * torch.exp(-math.log(10_000) * exponents)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Attention(nn.Module):
    """Self-attention of several heads; queries, keys and values have no bias (Bao et al. 2023)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, D] -> [B, N, D]."""
        split = self.query_key_value(tokens).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        joined: Tensor = self.dropout(self.project(mixed.transpose(1, 2).flatten(2)))
        return joined


class Perceptron(nn.Module):
    """Two layers, four times as wide between them, with GELU."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, D] -> [B, N, D]."""
        output: Tensor = self.dropout(self.narrow(self.dropout(F.gelu(self.widen(tokens)))))
        return output


class Block(nn.Module):
    """x + attention(norm(x)), then x + perceptron(norm(x)); a long skip is concatenated and projected first.

    Of the ways to add a skip that Bao et al. 2023 compare, this is the one they choose.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, skip: bool = False) -> None:
        super().__init__()
        self.join = nn.Linear(2 * width, width) if skip else None
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm_perceptron = nn.LayerNorm(width)
        self.perceptron = Perceptron(width, dropout)

    def forward(self, tokens: Tensor, skip: Tensor | None = None) -> Tensor:
        """[B, N, D] and the skip [B, N, D] of the partner block -> [B, N, D]."""
        if self.join is not None and skip is not None:
            tokens = self.join(torch.cat([tokens, skip], dim=-1))
        tokens = tokens + self.attention(self.norm_attention(tokens))
        output: Tensor = tokens + self.perceptron(self.norm_perceptron(tokens))
        return output


class UViT(nn.Module):
    """Transformer blocks over tokens, with long skips from the first half to the second."""

    def __init__(self, size: Size, spec: NetworkSpec, name: str = "uvit") -> None:
        super().__init__()
        self.name, self.size, self.spec = name, size, spec
        self.rows = patches_across(name, spec.image_size, size.patch)
        width, pixels = size.width, size.patch**2
        self.tokens_before_patches = 2 if spec.classes else 1
        count = self.rows**2 + self.tokens_before_patches
        self.embed_patches = nn.Linear(spec.channels_in * pixels, width)
        self.embed_label = nn.Embedding(spec.classes + 1, width) if spec.classes else None
        self.position = nn.Parameter(torch.zeros(1, count, width))
        half = range(size.depth // 2)
        self.first = nn.ModuleList(Block(width, size.heads, spec.dropout) for _ in half)
        self.middle = Block(width, size.heads, spec.dropout)
        self.second = nn.ModuleList(Block(width, size.heads, spec.dropout, skip=True) for _ in half)
        self.norm = nn.LayerNorm(width)
        self.predict = nn.Linear(width, spec.channels_out * pixels)
        channels = spec.channels_out
        self.smooth = nn.Conv2d(channels, channels, 3, padding=1) if size.smooth else nn.Identity()
        self._checkpointing = False
        self._initialise()

    def enable_gradient_checkpointing(self) -> None:
        """Compute the blocks again in the backward pass instead of keeping their activations."""
        self._checkpointing = True

    def _initialise(self) -> None:
        """Truncated normal of deviation 0.02 for every matrix, zero for biases, as vision transformers do."""
        nn.init.trunc_normal_(self.position, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.trunc_normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self, sample: Tensor, timestep: PerExample, class_labels: PerExample | None = None
    ) -> NetworkOutput:
        """Images [B, C, H, W], times [B] of any real value, labels [B] -> .sample [B, C', H, W]."""
        self.spec.check(self.name, sample)
        tokens = self._tokens(sample, timestep, class_labels) + self.position
        skips: list[Tensor] = []
        for block in self.first:
            tokens = self._through(block, tokens)
            skips.append(tokens)
        tokens = self._through(self.middle, tokens)
        for block in self.second:
            # The last block of the first half is the partner of the first block of the second.
            tokens = self._through(block, tokens, skips.pop())
        patches = self.predict(self.norm(tokens))[:, self.tokens_before_patches :]
        return NetworkOutput(self.smooth(unpatchify(patches, self.size.patch, self.rows)))

    def _through(self, block: nn.Module, *inputs: Tensor) -> Tensor:
        again = self._checkpointing and torch.is_grad_enabled()
        output: Tensor = checkpoint(block, *inputs, use_reentrant=False) if again else block(*inputs)
        return output

    def _tokens(self, sample: Tensor, timestep: PerExample, labels: PerExample | None) -> Tensor:
        """[B, N, D]: time, then the label if there is one, then patches."""
        patches = self.embed_patches(patchify(sample, self.size.patch))
        # The token of time is the sinusoid itself, without a perceptron, as in all published U-ViTs.
        time = sinusoids(timestep.expand(len(sample)), self.size.width).to(patches.dtype)
        before = [time] if self.embed_label is None else [time, self.embed_label(labels)]
        return torch.cat([torch.stack(before, dim=1), patches], dim=1)


def network(name: str, spec: NetworkSpec) -> UViT:
    """The U-ViT of this name."""
    return UViT(SIZES[name], spec, name)

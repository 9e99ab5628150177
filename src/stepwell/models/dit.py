"""Images and times as tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from diffusers import DiTTransformer2DModel
from diffusers.models.embeddings import CombinedTimestepLabelEmbeddings
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core.tensors import PerExample
from stepwell.models.denoiser import Answer, Task, patches_across


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
        inner = self.dropout(F.gelu(self.widen(tokens)))
        told: Tensor = self.dropout(self.narrow(inner))
        return told


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
        told: Tensor = tokens + self.perceptron(self.norm_perceptron(tokens))
        return told


@dataclass(frozen=True)
class Size:
    """A shape of DiT."""

    width: int
    depth: int
    heads: int
    patch: int = 2


SIZES = {
    "dit-s-2": Size(384, 12, 6),
    "dit-b-2": Size(768, 12, 12),
    "dit-l-2": Size(1024, 24, 16),
    "dit-xl-2": Size(1152, 28, 16),
}
"""The configurations of Peebles and Xie 2023."""


class _Given(nn.Module):
    """Stands where a block's embedder was: what it is given as time is the embedding already."""

    def forward(self, timestep: Tensor, class_labels: None, hidden_dtype: torch.dtype) -> Tensor:
        return timestep.to(hidden_dtype)


class DiT(nn.Module):
    """diffusers' DiT blocks behind one embedder; without classes, all images share one label."""

    def __init__(self, size: Size, task: Task, name: str = "dit") -> None:
        super().__init__()
        self.name, self.task = name, task
        patches_across(name, task.image_size, size.patch)
        self.embed = CombinedTimestepLabelEmbeddings(task.classes, size.width)
        # The table keeps its row for no class. Hiding labels is the denoiser's business: two would add up.
        self.embed.class_embedder.dropout_prob = 0.0
        self.blocks = DiTTransformer2DModel(
            num_attention_heads=size.heads,
            attention_head_dim=size.width // size.heads,
            in_channels=task.channels_in,
            out_channels=task.channels_out,
            num_layers=size.depth,
            dropout=task.dropout,
            sample_size=task.image_size,
            patch_size=size.patch,
            num_embeds_ada_norm=0,
        )
        for block in self.blocks.transformer_blocks:
            block.norm1.emb = _Given()
        self._initialise()

    def _initialise(self) -> None:
        """adaLN-Zero: every block starts as the identity and the output at 0, which diffusers leaves out."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embed.class_embedder.embedding_table.weight, std=0.02)
        nn.init.normal_(self.embed.timestep_embedder.linear_1.weight, std=0.02)
        nn.init.normal_(self.embed.timestep_embedder.linear_2.weight, std=0.02)
        zero = [block.norm1.linear for block in self.blocks.transformer_blocks]
        for layer in [*zero, self.blocks.proj_out_1, self.blocks.proj_out_2]:
            nn.init.zeros_(layer.weight)

    def forward(self, sample: Tensor, timestep: PerExample, class_labels: PerExample | None = None) -> Answer:
        """Images [B, C, H, W], times [B] of any real value, labels [B] -> .sample [B, C', H, W]."""
        self.task.check(self.name, sample)
        count = len(sample)
        labels = torch.zeros(count, dtype=torch.long, device=sample.device)
        told = self.embed(
            timestep.expand(count),
            labels if class_labels is None else class_labels,
            hidden_dtype=sample.dtype,
        )
        return Answer(self.blocks(sample, timestep=told).sample)


def network(name: str, task: Task) -> DiT:
    """The DiT of this name."""
    return DiT(SIZES[name], task, name)

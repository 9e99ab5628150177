"""The transformer block of U-ViT: attention and a perceptron, each on a normalised copy of its input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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

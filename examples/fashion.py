"""What the examples train on, the embedded 16x16 Fashion-MNIST, and what each of them returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stepwell.data.load import load


def images(count: int = 2048, held_out: bool = False) -> Tensor:
    """[N, 1, 16, 16] in [-1, 1]."""
    data = load("fashion16")
    source = data.held_out if held_out else data.train
    return source.examples(torch.arange(count))


def labels(count: int = 2048, held_out: bool = False) -> Tensor:
    """[N]: 0..9, of the same images."""
    data = load("fashion16", labels=True)
    values = (data.held_out if held_out else data.train).labels
    assert values is not None
    return values[:count]


def latents_of(pixels: Tensor) -> Tensor:
    """[N, 4, 8, 8] from [N, 1, 16, 16], in place of a frozen autoencoder."""
    return nn.functional.pixel_unshuffle(pixels, 2)


class TextEncoder(nn.Module):
    """Labels [B] as texts [B, 2, 16], in place of a frozen text encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 32).requires_grad_(False)

    def forward(self, input_ids: Tensor) -> Tensor:
        text: Tensor = self.tokens(input_ids).view(-1, 2, 16)
        return text


def endless(dataloader: DataLoader[Any], batches: int) -> Iterator[Any]:
    """Epoch after epoch, until this many batches."""
    while True:
        for batch in dataloader:
            if batches == 0:
                return
            batches -= 1
            yield batch


class Outcome(NamedTuple):
    """Held-out loss before and after, and every loss of the loop."""

    before: float
    after: float
    losses: list[float]

    def __str__(self) -> str:
        return f"held-out loss {self.before:.4f} -> {self.after:.4f} in {len(self.losses)} steps"

"""What the examples train on: the embedded 16x16 Fashion-MNIST, and what each of them tells at its end."""

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
    found = (data.held_out if held_out else data.train).labels
    assert found is not None
    return found[:count]


def latents_of(pixels: Tensor) -> Tensor:
    """[N, 4, 8, 8] from [N, 1, 16, 16]: what stands for a frozen autoencoder here."""
    return nn.functional.pixel_unshuffle(pixels, 2)


class TextEncoder(nn.Module):
    """Labels [B] as texts [B, 2, 16]: what stands for a frozen text encoder here."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 32).requires_grad_(False)

    def forward(self, input_ids: Tensor) -> Tensor:
        text: Tensor = self.tokens(input_ids).view(-1, 2, 16)
        return text


def endless(dataloader: DataLoader[Any], batches: int) -> Iterator[Any]:
    """Epoch after epoch, until so many batches have come."""
    while True:
        for batch in dataloader:
            if batches == 0:
                return
            batches -= 1
            yield batch


class Outcome(NamedTuple):
    """Held-out loss before and after, and the losses on the way as the loop computed them."""

    before: float
    after: float
    losses: list[float]

    def __str__(self) -> str:
        return f"held-out loss {self.before:.4f} -> {self.after:.4f} in {len(self.losses)} steps"

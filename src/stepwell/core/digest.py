"""Digests of weights, as checkpoints, generated images, latents and features record them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Protocol

import torch
from torch import Tensor


class Hash(Protocol):
    """A running hash of `hashlib`."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def weights_digest(tensors: Mapping[str, Tensor], total: Hash | None = None, label: str = "{name}") -> str:
    """The hexadecimal digest of tensors in the order of their names, each after its label.

    16 digits by default. `total` is another hash to continue, `label` a format of name, shape and dtype.
    """
    total = blake2b(digest_size=8) if total is None else total
    for name, tensor in sorted(tensors.items()):
        total.update(label.format(name=name, shape=list(tensor.shape), dtype=tensor.dtype).encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return total.hexdigest()

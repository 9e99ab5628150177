"""Names for kinds of tensors (one value per example, states, metrics), and constants on every device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

State: TypeAlias = dict[str, Any]
"""Tensors, numbers, strings and dicts of these: nothing that needs code to load."""

Metrics: TypeAlias = Mapping[str, Tensor]
"""Scalars on the device where they were computed: whoever logs them reads them back."""

PerExample: TypeAlias = Tensor
"""[B]: one value per example."""


def to_device(tree: Any, device: torch.device) -> Any:
    """A tree of dicts, lists, numbers and tensors with its tensors on a device."""
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, dict):
        return {key: to_device(value, device) for key, value in tree.items()}
    return [to_device(value, device) for value in tree] if isinstance(tree, list) else tree


def per_example(values: PerExample, like: Tensor) -> Tensor:
    """`values` [B] as [B, 1, ..., 1], so that it multiplies the examples of `like` [B, ...]."""
    return values.reshape(-1, *([1] * (like.dim() - 1)))


def precise(values: Tensor) -> torch.dtype:
    """float64 where the device has it (not Apple's MPS), else float32."""
    return torch.float32 if values.device.type == "mps" else torch.float64


FEW = 32
"""So few numbers take less time in Python than in torch on a CPU, where each operation costs microseconds."""


def few(count: int, device: torch.device) -> bool:
    """Whether `count` numbers on a device are better made one by one, in Python."""
    return count <= FEW and device.type == "cpu" and not torch.compiler.is_compiling()


class Lookup:
    """Constant float64 values, copied once to every device and dtype that is used."""

    def __init__(self, values: Tensor) -> None:
        self.values = values.detach().to("cpu", torch.float64)
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def on(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The values on a device, in a dtype."""
        if (device, dtype) not in self._copies:
            self._copies[device, dtype] = self.values.to(device=device, dtype=dtype)
        return self._copies[device, dtype]

    def at(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """The entries at `index`, on its device."""
        return self.on(index.device, dtype)[index]

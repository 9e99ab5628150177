"""What a network is shown: the tensors among its inputs that may be the noisy examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from stepwell.loss_at import bare


def listen(network: nn.Module, heard: Callable[[list[Tensor]], None]) -> RemovableHandle:
    """Call `heard` with the tensors of every forward pass, before it; not while torch.compile traces."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            heard([given for given in (*args, *kwargs.values()) if isinstance(given, Tensor)])

    # On the bare module: a DDP wrapper is not what a probe calls.
    return bare(network).register_forward_pre_hook(hook, with_kwargs=True)


def noisy(inputs: list[Tensor], x0: Tensor) -> list[Tensor]:
    """Those shaped as x0 [B, C, ...], and of those with more channels the first C (masks come behind)."""
    found = [given for given in inputs if given.is_floating_point() and _fits(given, x0)]
    return [given.detach()[:, : x0.shape[1]] for given in found]


def _fits(given: Tensor, x0: Tensor) -> bool:
    if given.shape == x0.shape:
        return x0.dim() > 1
    alike = given.dim() == x0.dim() > 2 and len(given) == len(x0) and given.shape[2:] == x0.shape[2:]
    return alike and given.shape[1] > x0.shape[1]

"""Which network does the loop train? Found by what is called after a draw, where `network=` was not given."""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakMethod, WeakSet, finalize

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

DRAWS = 8
"""Draws after which nothing more is looked for."""


class NetworkSearch:
    """The first module that is called after a draw, learns, and is shown what may be the noisy examples.

    torch's hook on all modules sees positional arguments only: a module called by keywords is a guess, which
    `reject` takes back.
    """

    def __init__(self) -> None:
        self.found: nn.Module | None = None
        self._rejected: WeakSet[nn.Module] = WeakSet()
        self._draws = DRAWS
        self._x0: Tensor | None = None
        self._handle: RemovableHandle | None = None
        self._called = True

    def begin(self, x0: Tensor) -> None:
        """The host is about to train on x0 [B, ...]."""
        if not self._called:
            # Compiled whole: a hook would only make it compile again.
            self._draws = 0
        if self._draws > 0:
            self._draws -= 1
            self._x0, self._called = x0, False
            # The hook fires for the wrapper that torch.compile makes, which is what it looks for.
            warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
            look = WeakMethod(self._look)

            def hook(module: nn.Module, arguments: Any) -> None:
                if not torch.compiler.is_compiling() and (alive := look()) is not None:
                    alive(module, arguments)

            self._handle = register_module_forward_pre_hook(hook)
            # A loop that failed after its draw leaves nothing behind.
            finalize(self, self._handle.remove)

    def end(self) -> None:
        """The next forward pass is not the host's training."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._x0 = None

    def reject(self) -> None:
        """What was found is another network, a text encoder for example."""
        if self.found is not None:
            self._rejected.add(self.found)
        self.found = None

    def _look(self, module: nn.Module, arguments: Any) -> None:
        self._called = True
        if self._x0 is None or not torch.is_grad_enabled() or module in self._rejected:
            return
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        if not _may_be_noisy(tensors, self._x0) or not any(p.requires_grad for p in module.parameters()):
            return
        self.found = module
        self.end()


def _may_be_noisy(tensors: list[Tensor], x0: Tensor) -> bool:
    """Whether one is as wide and high as x0 without being x0: a wrapper is given x0, and adds the noise."""
    if any(one.data_ptr() == x0.data_ptr() for one in tensors):
        return False
    alike = [one for one in tensors if one.dim() == x0.dim() and one.shape[2:] == x0.shape[2:]]
    return not tensors or any(one.is_floating_point() and len(one) == len(x0) for one in alike)

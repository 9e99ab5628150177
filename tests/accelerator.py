"""A stand-in accelerator: fake tensors on the device "meta", where looking at a value is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("meta")


@contextmanager
def accelerator() -> Iterator[None]:
    """Inside, `.item()`, `bool(tensor)`, masks as indices and mixed devices raise.

    Nothing that was used inside may be used outside: caches keep fake tensors.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


class Copies(TorchDispatchMode):
    """Notes every operation that moves values between host and device; such a copy waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._constants = _Constants(self.found)

    def __enter__(self) -> Copies:
        self._constants.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._constants.__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        if "copy" not in str(function):
            # A host tensor of no dimensions may meet a device: it travels as a kernel's argument.
            tensors = [tensor for tensor in tensors if tensor.dim()]
        if len({tensor.device for tensor in tensors}) > 1:
            self.found.append(f"{function} {[tuple(tensor.shape) for tensor in tensors]}")
        return result


class _Constants(TorchFunctionMode):
    """torch.tensor(2.0, device=...) is a copy as well, which dispatch does not show."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        target = torch.device(kwargs.get("device") or "cpu")
        makes = function in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor)
        if makes and target.type != "cpu":
            self._found.append(f"torch.{function.__name__}({args[0]!r}, device={target})")
        return function(*args, **kwargs)

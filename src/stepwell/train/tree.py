"""Nested state as tensors and JSON: what a checkpoint can hold without pickling anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TENSOR = "__tensor__"


def split(tree: Any, name: str = "") -> tuple[Any, dict[str, Tensor]]:
    """A tree of dicts, lists, numbers and tensors as a JSON tree that points into a dict of tensors."""
    if isinstance(tree, Tensor):
        return {_TENSOR: name}, {name: tree.detach().cpu().contiguous()}
    tensors: dict[str, Tensor] = {}
    if isinstance(tree, dict):
        plain: Any = []
        for key, value in tree.items():
            branch, found = split(value, f"{name}/{key}" if name else str(key))
            # Pairs, not an object: optimizer states are keyed by integers, which JSON objects lose.
            plain.append([key, branch])
            tensors.update(found)
        return {"dict": plain}, tensors
    if isinstance(tree, (list, tuple)):
        parts = [split(value, f"{name}/{index}") for index, value in enumerate(tree)]
        for _, found in parts:
            tensors.update(found)
        return {"list": [branch for branch, _ in parts]}, tensors
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree, {}
    raise TypeError(f"{name} is a {type(tree).__name__}, which a checkpoint cannot hold")


def join(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree that `split` took apart."""
    if not isinstance(plain, dict):
        return plain
    if _TENSOR in plain:
        return tensors[plain[_TENSOR]]
    if "dict" in plain:
        return {key: join(branch, tensors) for key, branch in plain["dict"]}
    return [join(branch, tensors) for branch in plain["list"]]


def to_device(tree: Any, device: torch.device) -> Any:
    """The same tree with its tensors on a device."""
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, dict):
        return {key: to_device(value, device) for key, value in tree.items()}
    return [to_device(value, device) for value in tree] if isinstance(tree, list) else tree

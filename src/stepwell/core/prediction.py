"""What a network may predict: each prediction is p x0 + q eps, so it is two numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stepwell.core.errors import unknown
from stepwell.core.tensors import PerExample, per_example

Mix = tuple[PerExample, PerExample]

MIXES: dict[str, Callable[[Tensor, Tensor], Mix]] = {
    "eps": lambda a, s: (torch.zeros_like(a), torch.ones_like(a)),
    "x0": lambda a, s: (torch.ones_like(a), torch.zeros_like(a)),
    "v": lambda a, s: (-s, a),
    "velocity": lambda a, s: (-torch.ones_like(a), torch.ones_like(a)),
}
"""From (signal, noise) to (p, q). v: Salimans and Ho 2022; velocity: rectified flow, eps - x0."""

SPELLINGS = {
    "epsilon": "eps",
    "sample": "x0",
    "x_start": "x0",
    "v_prediction": "v",
    "flow_prediction": "velocity",
}
"""The names of diffusers and others."""


def prediction_name(name: str, allowed: tuple[str, ...]) -> str:
    """The canonical name of a prediction, if the process allows it."""
    canonical = SPELLINGS.get(name, name) if isinstance(name, str) else name
    if canonical not in allowed:
        raise unknown("prediction of this process", name, allowed)
    return canonical


def convert(output: Tensor, xt: Tensor, scales: Mix, source: str, target: str) -> Tensor:
    """A prediction of one kind as another: solve the two linear equations for x0 and eps, mix again."""
    a, s = (per_example(scale, xt) for scale in scales)
    p, q = MIXES[prediction_name(source, tuple(MIXES))](a, s)
    determinant = a * q - s * p
    x0 = (q * xt - s * output) / determinant
    eps = (a * output - p * xt) / determinant
    p, q = MIXES[prediction_name(target, tuple(MIXES))](a, s)
    return (p * x0 + q * eps).to(output.dtype)

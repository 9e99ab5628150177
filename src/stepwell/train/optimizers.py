"""Optimizers by name, each from the package that people use it from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class OptimizerEntry:
    """Where an optimizer comes from, and what it expects of the settings that all share."""

    package: str
    kind: str
    """Its class there."""
    has_betas: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, float] = field(default_factory=dict)
    """Settings as its authors recommend them, where a recipe's defaults are Adam's."""


OPTIMIZERS = {
    "adamw": OptimizerEntry("torch.optim", "AdamW", options={"fused": True}),
    "adam": OptimizerEntry("torch.optim", "Adam", options={"fused": True}),
    "adafactor": OptimizerEntry("torch.optim", "Adafactor", has_betas=False),
    "lion": OptimizerEntry("lion_pytorch", "Lion", usual={"beta2": 0.99}),
    "prodigy": OptimizerEntry("prodigyopt", "Prodigy", usual={"lr": 1.0}),
    "adamw-8bit": OptimizerEntry("bitsandbytes.optim", "AdamW8bit"),
}
_INSTALLED_AS = {"lion_pytorch": "lion-pytorch"}


def missing_package(name: str) -> str:
    """What to install for an optimizer; empty if it is there."""
    module = OPTIMIZERS[name].package.partition(".")[0]
    return "" if find_spec(module) else _INSTALLED_AS.get(module, module)


def build_optimizer(
    name: str, parameters: Iterable[Tensor], lr: float, betas: tuple[float, float], weight_decay: float
) -> Any:
    """The optimizer of a name for some parameters."""
    entry = OPTIMIZERS[name]
    kind = getattr(import_module(entry.package), entry.kind)
    options = {**entry.options, "betas": betas} if entry.has_betas else dict(entry.options)
    return kind(list(parameters), lr=lr, weight_decay=weight_decay, **options)

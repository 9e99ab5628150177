"""The examples of frameworks and of protocols, and how their own loops are fed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from hosts import Host, feed_randint

from stepwell.pacer.pace import Pace


def feed_rand(patch: pytest.MonkeyPatch, module: ModuleType, paces: Iterator[Pace]) -> None:
    """`torch.rand` as flows draw time from noise to data."""
    patch.setattr(torch, "rand", lambda *args, **kwargs: 1 - next(paces).sigma)


def feed_sigma(patch: pytest.MonkeyPatch, module: ModuleType, paces: Iterator[Pace]) -> None:
    """Noise levels, as Karras' code draws them from a log-normal density."""

    def recorded(shape: list[int], **kwargs: object) -> torch.Tensor:
        return next(paces).sigma.view(shape)

    patch.setattr(sys.modules["karras_protocol"], "log_normal", recorded)


HOSTS = [
    Host("guided_diffusion_loop", feed_randint),
    Host("dit_loop", feed_randint),
    Host("sit_loop", feed_rand),
    Host("edm_loop", feed_sigma),
    Host("k_diffusion_loop", feed_sigma),
    Host("lucidrains_loop", feed_randint),
    Host("lightning_module", feed_randint, needs=("lightning",)),
    Host("transformers_trainer", feed_randint, needs=("transformers",)),
]

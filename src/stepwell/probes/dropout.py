"""Dropout while a probe measures: from a random state of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stepwell.core.tick import Tick


@contextmanager
def forked(tick: Tick, stream: str, device: torch.device) -> Iterator[None]:
    """torch's generators as a function of a named stream of the tick, and as they were afterwards."""
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=_type(device)):
        torch.default_generator.manual_seed(tick.key(stream))
        if device.type != "cpu":
            torch.manual_seed(tick.key(stream))
        yield


def _type(device: torch.device) -> str:
    # fork_rng always keeps the CPU's state; with no other device to keep, its kind must only exist.
    return "cuda" if device.type == "cpu" else device.type

"""The hosts of diffusers' family."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from hosts import Host, feed_randint

from stepwell.pacer import Pace


def feed_density(patch: pytest.MonkeyPatch, module: ModuleType, paces: Iterator[Pace]) -> None:
    """diffusers' own function, which SD3 and Flux scripts multiply by T: u is a place in a falling list."""
    patch.setattr(
        module.training_utils,
        "compute_density_for_timestep_sampling",
        lambda *args, **kwargs: (next(paces).indices + 0.5) / 1000,
    )


HOSTS = [
    Host("diffusers_unconditional", feed_randint),
    Host("diffusers_text_to_image", feed_randint),
    Host("diffusers_lora", feed_randint, falls_to=0.9, needs=("peft",)),
    Host("diffusers_sd3", feed_density),
]

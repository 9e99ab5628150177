"""denoising-diffusion-pytorch's loss at chosen times."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from protocols import Tiny, batch
from torch import Tensor

from stepwell.core.errors import Unsupported
from stepwell.integrations import lucidrains


def test_the_loss_of_lucidrains_is_that_of_the_noise() -> None:
    import lucidrains_protocol as theirs

    network = Tiny()
    diffusion = theirs.GaussianDiffusion(network)
    ready = lucidrains.loss_at(diffusion)
    images, noise, u = batch().sigmoid(), batch(1), torch.linspace(0.05, 0.95, 8)
    x = 2 * images - 1
    signal, rest = (scale.view(-1, 1, 1, 1) for scale in ready.process.scales(u))
    v = network((signal * x + rest * noise).float(), ready.process.time(u))
    eps = signal * v + rest * (signal * x + rest * noise)
    expected = (eps - noise).square().flatten(1).mean(1)
    assert torch.allclose(ready(images, noise, u), expected.float(), rtol=1e-3, atol=1e-5)
    with pytest.raises(Unsupported, match="denoising-diffusion-pytorch"):
        lucidrains.loss_at(network)


def test_a_coin_of_self_conditioning_stays_the_hosts() -> None:
    import lucidrains_protocol as theirs

    class Tossing(theirs.GaussianDiffusion):
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            random.random()
            found: Tensor = super().forward(*args, **kwargs)
            return found

    before = random.getstate()
    lucidrains.loss_at(Tossing(Tiny()))(batch().sigmoid(), batch(1), torch.full((8,), 0.5))
    assert random.getstate() == before

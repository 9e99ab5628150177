"""Every family, at a reduced width, learns 16 images by heart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import case

from stepwell.models import dit, unet, uvit
from stepwell.models.denoiser import Condition, Denoiser, NetworkSpec

TASK = NetworkSpec(channels=3, image_size=8, classes=2)


def narrow(name: str, **settings: Any) -> Any:
    """Two levels of 16 and 32 channels, attention at the second, all else as published."""
    size = unet.SIZES[name]
    settings = {**size.settings, "norm_num_groups": 8, **settings}
    small = replace(size, channels=(16, 32), layers=1, attention=(1,), settings=settings)
    return unet.network(name, TASK, small)


FAMILIES = {
    "ddpm": lambda: narrow("ddpm-cifar10"),
    "ldm": lambda: narrow("ldm-celebahq", attention_head_dim=8),
    "adm": lambda: narrow("adm-imagenet64", attention_head_dim=8, attn_norm_num_groups=8),
    "uvit": lambda: uvit.UViT(uvit.Size(width=64, depth=2, heads=4), TASK),
    "dit": lambda: dit.DiT(dit.Size(width=64, depth=2, heads=4), TASK),
}


@pytest.mark.parametrize("family", [case(name, quick=name in ("uvit", "dit")) for name in FAMILIES])
def test_sixteen_images_by_heart(family: str) -> None:
    """White images with as much noise: a network that does not know them errs by 0.5, whatever its size."""
    torch.manual_seed(0)
    network = Denoiser(FAMILIES[family](), classes=2)
    x0, noise = torch.randn(2, 16, 3, 8, 8)
    times, condition = torch.linspace(0, 999, 16), Condition(torch.arange(16) % 2)
    optimizer = torch.optim.Adam(network.parameters(), lr=4e-3)
    for _ in range(200):
        loss = (network((x0 + noise) / 2**0.5, times, condition) - noise).square().mean()
        if loss.item() < 0.1:
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pytest.fail(f"{family} still errs by {loss.item():.3f} after 200 steps")

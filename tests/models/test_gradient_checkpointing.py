"""Gradient checkpointing computes the same gradients, and computes blocks twice."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from stepwell.models.registry import build_model

INNER = {"micro": "down_blocks.0.resnets.0", "uvit-s": "first.0.attention", "dit-s-2": "blocks.0.attn1"}


def _count(counted: list[int], *_: object) -> None:
    counted.append(1)


@pytest.mark.parametrize("name", ["micro", "uvit-s", "dit-s-2"])
def test_gradients_are_the_same(name: str) -> None:
    x, time = torch.randn(2, 1, 16, 16), torch.tensor([3.0, 700.0])
    gradients, passes = [], []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = build_model(name, channels=1, image_size=16)
        counted: list[int] = []
        inner = next(m for n, m in model.named_modules() if n.endswith(INNER[name]))
        inner.register_forward_pre_hook(partial(_count, counted))
        if checkpointing:
            model.network.enable_gradient_checkpointing()
        model(x, time).square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        passes.append(len(counted))
    assert passes[1] == 2 * passes[0]
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)

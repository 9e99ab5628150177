"""A pacer that is never told of an update says so, instead of never learning."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import stepwell
from stepwell.pacer.window import CallOrderError


def loop(
    pacer: stepwell.Pacer, optimizer: torch.optim.Optimizer, after: Callable[[], object], steps: int
) -> None:
    for _ in range(steps):
        pacer.draw(torch.randn(4, 1, 2, 2))
        pacer.observe(torch.rand(4))
        optimizer.step()
        optimizer.zero_grad()
        after()


def made(name: str = "auto") -> tuple[stepwell.Pacer, torch.optim.Optimizer]:
    network = nn.Linear(2, 2)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(network.parameters())
    return stepwell.Pacer(name, "linear", optimizer=optimizer), optimizer


def test_updates_that_are_not_told_are_an_error() -> None:
    pacer, optimizer = made()
    with pytest.raises(CallOrderError, match=r"AdamW stepped 3 times .* write pacer.attach\(optimizer\)"):
        loop(pacer, optimizer, lambda: None, 8)


@pytest.mark.parametrize("name", ["auto", "uniform"])
def test_updates_that_are_told_or_need_not_be_are_none(name: str) -> None:
    pacer, optimizer = made(name)
    loop(pacer, optimizer, (lambda: pacer.after_update()) if name == "auto" else lambda: None, 8)
    pacer, optimizer = made(name)
    pacer.attach(optimizer)
    loop(pacer, optimizer, lambda: None, 8)

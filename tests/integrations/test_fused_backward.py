"""Parameters that move while the backward pass runs, as kohya's and OneTrainer's fused passes have it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepwell
from stepwell.pacer import Pacer

RATE = 0.05
PROCESS = stepwell.process("linear")


class Trainer:
    """Plain gradient descent on one layer: by an optimizer's step, or in hooks during backward."""

    def __init__(self, sampler: str, fused: bool, **parameters: Any) -> None:
        torch.manual_seed(0)
        self.network, self.fused = nn.Linear(8, 8), fused
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=RATE)
        made = stepwell.sampler(sampler, PROCESS, **parameters)
        if fused:
            for parameter in self.network.parameters():
                parameter.register_post_accumulate_grad_hook(self._descend)
            self.pacer = Pacer(
                made, PROCESS, loss_at=self.loss_at, network=self.network, optimizer=self.optimizer
            )
        else:
            self.pacer = Pacer(made, PROCESS, loss_at=self.loss_at, network=self.network)
            self.pacer.attach(self.optimizer)

    @staticmethod
    def _descend(parameter: Tensor) -> None:
        with torch.no_grad():
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=-RATE)
            parameter.grad = None

    def loss_at(self, x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        problem = PROCESS.corrupt(x0, noise, u)
        return (self.network(problem.input) - problem.target).square().mean(1)

    def step(self) -> float:
        x0 = torch.randn(16, 8)
        pace = self.pacer.draw(x0)
        loss = (self.loss_at(x0, torch.randn_like(x0), pace.u, None) * pace.weight).mean()
        if self.fused:
            self.pacer.before_update()
            loss.backward()
            self.pacer.after_update()
        else:
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()


@pytest.mark.parametrize(
    ("sampler", "parameters"),
    [
        ("neyman", {"every_steps": 1, "strata": 4, "images": 8, "metric": "plain"}),
        ("beta-policy", {"every_steps": 2, "target": "simple"}),
    ],
)
def test_explicit_calls_measure_what_hooks_on_the_optimizer_do(sampler: str, parameters: Any) -> None:
    def run(fused: bool) -> tuple[list[float], Tensor, nn.Module]:
        trainer = Trainer(sampler, fused, **parameters)
        losses = [trainer.step() for _ in range(12)]
        x0 = torch.zeros(30, 8) if sampler == "beta-policy" else None
        return losses, trainer.pacer.sampler.density(torch.linspace(0.01, 0.99, 30), x0), trainer.network

    losses, density, network = run(fused=True)
    wanted, density_wanted, other = run(fused=False)
    # Losses to the last bit but one: an optimizer may fuse its multiply and add.
    assert losses == pytest.approx(wanted, rel=1e-6)
    torch.testing.assert_close(density, density_wanted, rtol=1e-4, atol=1e-5)
    assert sampler == "beta-policy" or density.std() > 0.01
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)

"""A step that a GradScaler skips (fp16) is no update for the sampler, attached or in our own trainer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from test_attach import DECREASE, PROCESS, Host, Listener
from torch import nn

from stepwell.core.tick import Tick
from stepwell.data.batches import Batch
from stepwell.objective import Objective
from stepwell.pacer import Pacer
from stepwell.train.ema import Ema
from stepwell.train.learning_rate import LearningRate
from stepwell.train.step import Training, train_step

OVERFLOWS = (0, 2)
"""Steps of four whose gradients are infinite: each of the two updates then has the draws of two steps."""


class Denoiser(nn.Module):
    """One matrix, as the trainer calls a network; its gradients overflow in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.overflow = False

    def forward(self, input: torch.Tensor, time: Any, condition: Any = None) -> torch.Tensor:
        output: torch.Tensor = self.layer(input)
        if self.overflow and output.requires_grad and self.training:
            output.register_hook(lambda gradient: gradient * torch.inf)
        return output


class Batches:
    def at(self, tick: Tick, accumulate: int = 1) -> Batch:
        x0 = torch.randn(4, 3, generator=torch.Generator().manual_seed(tick.step))
        return Batch(x0, None, torch.arange(4))


def trained(fused: bool) -> Listener:
    """What a sampler learns in four steps of our trainer with fp16's scaler."""
    sampler, network, accelerator = Listener(DECREASE), Denoiser(), Accelerator(cpu=True)
    # accelerate makes no scaler on the CPU.
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, fused=fused)
    denoiser, stepped = accelerator.prepare(network, optimizer)
    objective = Objective(PROCESS)

    def loss_at(x0: Any, noise: Any, u: Any, condition: Any) -> Any:
        return objective(network, x0, noise, u, condition).plain

    pacer = Pacer(sampler, PROCESS, loss_at=loss_at, optimizer=stepped, network=network)
    training = Training(
        accelerator,
        denoiser,
        objective,
        pacer,
        Batches(),  # type: ignore[arg-type]
        stepped,
        LearningRate(0.1),
        Ema(network.parameters(), 0.9),
        seed=1,
        clip=None,
    )
    for step in range(4):
        network.overflow = step in OVERFLOWS
        before = network.layer.weight.detach().clone()
        train_step(training, step)
        assert torch.equal(before, network.layer.weight) == (step in OVERFLOWS)
    return sampler


def attached(fused: bool) -> Listener:
    """What it learns in four steps of a loop with hooks."""
    host = Host(options={"fused": fused})
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=4.0), host.optimizer
    host.pacer.attach(optimizer)
    scaler.scale(torch.ones(()))
    for step in range(4):
        host.step(step, update=False, poison=step in OVERFLOWS)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    # The pacer counts real updates.
    assert [(one.tick.step, one.tick.micro) for one in host.sampler.received] == [(0, 1), (1, 1)]
    return host.sampler


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("run", [attached, trained])
def test_the_draws_of_a_skipped_update_belong_to_the_next(run: Any, fused: bool) -> None:
    received = run(fused).received
    assert [len(feedback.u) for feedback in received] == [8, 8]
    assert all(len(feedback.u.unique()) == 8 for feedback in received)
    # The decrease is that of an update that moved the parameters.
    assert all(feedback.signal.rewards.abs().max() > 1e-3 for feedback in received)


def test_explicit_calls_say_which_update_was_skipped() -> None:
    pacer = Pacer("loss-ema", PROCESS)
    pacer.draw(torch.zeros(4, 3))
    pacer.observe(torch.ones(4))
    pacer.before_update()
    assert pacer.after_update(skipped=True) == {}
    assert pacer.state_dict()["counter"] == {"seed": 0, "step": 0, "micro": 1}
    pacer.draw(torch.zeros(4, 3))
    pacer.observe(torch.ones(4))
    pacer.before_update()
    assert pacer.after_update()
    assert pacer.state_dict()["counter"] == {"seed": 0, "step": 1, "micro": 0}

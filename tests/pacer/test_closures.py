"""Pacers where the step computes its own losses, and draws that are no training."""

from __future__ import annotations

import pytest
import torch
from test_attach import PROCESS, Host

import stepwell
from stepwell.core.errors import Unsupported
from stepwell.pacer import CallOrderError, Pacer


def closure_step(host: Host, seed: int, announce: bool = True) -> None:
    """One update whose losses are computed inside the step."""

    def closure() -> torch.Tensor:
        host.optimizer.zero_grad()
        host.step(seed, update=False)
        if announce:
            host.pacer.before_update()
        return torch.zeros(())

    host.optimizer.step(closure)
    host.optimizer.zero_grad()


def test_a_closure_that_calls_before_update_is_as_good_as_a_hook() -> None:
    inside, outside = Host(), Host()
    inside.pacer.attach(inside.optimizer, closure=True)
    outside.pacer.attach(outside.optimizer)
    for step in range(3):
        closure_step(inside, step)
        outside.step(step)
    assert len(inside.sampler.received) == 3
    for one, two in zip(inside.sampler.received, outside.sampler.received, strict=True):
        assert torch.equal(one.u, two.u)
        assert torch.equal(one.signal.rewards, two.signal.rewards)


def test_a_closure_without_before_update_gets_an_error() -> None:
    host = Host()
    host.pacer.attach(host.optimizer, closure=True)
    with pytest.raises(CallOrderError, match=r"without pacer\.before_update\(\)"):
        closure_step(host, 0, announce=False)
    with pytest.raises(CallOrderError, match="whose hooks do this"):
        host.pacer.after_update()


def test_hooks_alone_say_what_a_closure_needs() -> None:
    host = Host()
    host.pacer.attach(host.optimizer)
    with pytest.raises(Unsupported, match=r"attach\(optimizer, closure=True\)"):
        closure_step(host, 0)


def test_two_optimizers_with_closures_are_one_update() -> None:
    host = Host()
    second = torch.optim.SGD([host.network.bias], lr=0.1)
    first = host.optimizer = torch.optim.SGD([host.network.weight], lr=0.1)
    host.pacer.attach(first, second, closure=True)
    for step in range(4):
        host.step(step, update=False)
        host.pacer.before_update(first)
        first.step()
        if step == 1:
            continue  # The second one was skipped: its draws belong to the next update.
        host.pacer.before_update(second)
        second.step()
    assert [one.u.shape for one in host.sampler.received] == [(4,), (8,), (4,)]
    assert all(one.signal is not None for one in host.sampler.received)


def test_draws_of_an_evaluation_leave_no_trace() -> None:
    def losses(evaluate: bool) -> list[torch.Tensor]:
        host = Host()
        host.pacer.attach(host.optimizer)
        for step in range(4):
            if evaluate:
                host.pacer.eval()
                pace = host.pacer.draw(torch.zeros(5, 3))
                host.pacer.observe(torch.ones(5))
                assert pace.u.shape == (5,)
                host.pacer.train()
            host.step(step, update=step % 2 == 1)
        assert host.pacer.draws == 4
        return [torch.cat([one.u, one.signal.rewards.flatten()]) for one in host.sampler.received]

    for one, two in zip(losses(True), losses(False), strict=True):
        assert torch.equal(one, two)


def test_every_evaluation_has_the_same_draws_and_no_training_has_them() -> None:
    pacer = Pacer("uniform", PROCESS)
    first = [pacer.eval().draw(torch.zeros(8, 1)).u, pacer.draw(torch.zeros(8, 1)).u]
    trained = pacer.train().draw(torch.zeros(8, 1)).u
    second = [pacer.eval().draw(torch.zeros(8, 1)).u, pacer.draw(torch.zeros(8, 1)).u]
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], trained)


def test_a_sampler_of_losses_is_not_missed_in_an_evaluation() -> None:
    pacer = Pacer("loss-ema", stepwell.process("linear")).eval()
    for _ in range(3):
        pacer.draw(torch.zeros(4, 2))

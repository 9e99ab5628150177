"""The Beta policy over ranks, warm-ups, ranges, seeds and resumed runs."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from samplers.beta_policy.policy_updates import (
    LINEAR,
    SEED,
    constant,
    decrease,
    due,
    noise,
    told,
    update,
)

import stepwell
from stepwell.core.errors import StateMismatch
from stepwell.core.feedback import DecreaseSignal
from stepwell.core.tick import Tick
from stepwell.samplers.beta_policy.policy import PolicyNetwork
from stepwell.samplers.beta_policy.sampler import beta_policy


def test_an_action_is_handed_out_only_when_something_is_measured() -> None:
    sampler, x0 = beta_policy(LINEAR), noise(5, 3, 64, 9)
    tick = due(sampler, 1)
    assert sampler.draw(x0, replace(tick, step=tick.step + 1)).action is None
    drawn = sampler.draw(x0, tick)
    assert drawn.action is not None
    # What the policy saw of each example, and what was drawn for it.
    assert drawn.action.shape == (5, 3 * 8 * 8 + 1)
    assert torch.equal(drawn.action[:, -1], drawn.u)


def test_feedback_of_all_ranks_is_learned_as_one_batch() -> None:
    # In rank order, as the pacer gathers it; every rank then holds the same policy.
    x0, reward = noise(8, 3, 16, 16), noise(16, 1, seed=3).expand(16, 3)
    ranks = [beta_policy(LINEAR) for _ in range(2)]
    tick = due(ranks[0])
    drawn = [s.draw(x0 + r, replace(tick, rank=r, world=2)) for r, s in enumerate(ranks)]
    gathered = torch.cat([d.action for d in drawn if d.action is not None])
    signal = DecreaseSignal(noise(50), reward)
    for sampler in ranks:
        sampler.learn(told(tick, gathered, signal))
    u = torch.linspace(0.01, 0.99, 30)
    assert torch.equal(ranks[0].density(u, x0), ranks[1].density(u, x0))
    assert not torch.equal(ranks[0].density(u, x0), beta_policy(LINEAR).density(u, x0))


def test_a_warm_up_fills_the_queue_and_leaves_the_policy() -> None:
    sampler = stepwell.warm_up(beta_policy(LINEAR), 1000)
    for number in range(5):
        update(sampler, number, torch.zeros(4, 2), constant)
    state = sampler.state_dict()["sampler"]
    assert len(state["credit"]["queue"]) == 5
    assert state["policy"] == {}


def test_inside_a_range_it_is_probed_there_and_learns_its_own_time() -> None:
    sampler, x0 = stepwell.within(beta_policy(LINEAR), 0.5, 1.0), noise(64, 4)
    assert min(decrease(sampler).grid) > 0.5
    for number in range(60):
        update(sampler, number, x0, lambda x, u: u)
    assert float(sampler.cdf(torch.tensor([0.75]), x0)) < 0.25


@pytest.mark.parametrize(
    "parameters",
    [{}, {"as_published": True}, {"paper": True}, {"conditional": False}, {"selection": "forward"}],
    ids=str,
)
def test_a_reloaded_policy_continues_with_the_same_bits(parameters: dict[str, Any]) -> None:
    one, x0 = beta_policy(LINEAR, **parameters), noise(16, 3, 8, 8)
    for number in range(6):
        update(one, number, x0, lambda x, u: u)
    other = beta_policy(LINEAR, **parameters)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert decrease(one) == decrease(other)
    for number in range(6, 10):
        for each in (one, other):
            update(each, number, x0, lambda x, u: u.square())
        ticks = Tick(step=number)
        assert torch.equal(one.draw(x0, ticks).u, other.draw(x0, ticks).u)
        assert decrease(one).subset == decrease(other).subset


@pytest.mark.parametrize(
    "other",
    [
        {"hidden": 64},
        {"conditional": False},
        {"as_published": True},
        {"paper": True},
        {"subset": 2},
        {"grid": 20},
    ],
    ids=str,
)
def test_the_state_of_another_policy_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(StateMismatch):
        beta_policy(LINEAR).load_state_dict(beta_policy(LINEAR, **other).state_dict())


def test_two_seeds_have_two_policies_and_all_ranks_of_one_have_one() -> None:
    x0, states = noise(8, 3, 16, 16), []
    for tick in (Tick(1, 39, 0, 0, 2), Tick(1, 39, 0, 1, 2), Tick(2, 39)):
        sampler = beta_policy(LINEAR)
        action = sampler.draw(x0, replace(tick, rank=0, world=1)).action
        sampler.learn(told(tick, action, DecreaseSignal(noise(50), noise(8, 3, seed=1))))
        states.append(sampler.state_dict()["policy"]["3/2"]["weights"])
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])
        assert name.startswith("linear.2") or not torch.equal(value, states[2][name])


def test_a_policy_from_before_weights_had_a_seed_goes_on_with_its_own() -> None:
    # Old states have a network from the first draw on: before its first step too.
    sampler, x0 = beta_policy(LINEAR), noise(8, 5)
    sampler.draw(x0, Tick(SEED))
    state = sampler.state_dict()
    network = PolicyNetwork(5, 0, 128, 0, torch.device("cpu"))
    old = {name: torch.full_like(p, 0.01) for name, p in network.named_parameters()}
    nothing = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    state["policy"] = {"5/0": {"weights": old, "first": nothing, "second": nothing, "steps": 0}}
    sampler.load_state_dict(state)
    update(sampler, 0, x0, lambda x, u: u)
    trained = sampler.state_dict()["policy"]["5/0"]
    assert torch.allclose(trained["weights"]["linear.0.weight"], old["linear.0.weight"], atol=0.011)
    assert trained["steps"] == 1

"""In a mix the Beta policy learns from its own draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerator import DEVICE, Copies, accelerator
from samplers.beta_policy.policy_updates import (
    LINEAR,
    SEED,
    decrease,
    due,
    gradients,
    in_two_bands,
    noise,
    told,
    update,
)
from torch import Tensor

import stepwell
from stepwell.core.density import Uniform
from stepwell.core.feedback import DecreaseSignal, Feedback, GradientSignal
from stepwell.core.sampler import TimestepSampler
from stepwell.core.tick import Tick
from stepwell.samplers.beta_policy.alignment import MIN_MEASUREMENTS
from stepwell.samplers.beta_policy.policy import PolicyNetwork
from stepwell.samplers.beta_policy.sampler import beta_policy
from stepwell.samplers.one_density import Static

UNIFORM = Static(Uniform(), "uniform")
MIXED: dict[str, Callable[[TimestepSampler], TimestepSampler]] = {
    "mix": lambda policy: stepwell.mix(policy, UNIFORM, 0.5),
    "stratified": lambda policy: stepwell.stratified(stepwell.mix(policy, UNIFORM, 0.5)),
    "unbiased": lambda policy: stepwell.unbiased(stepwell.mix(policy, UNIFORM, 0.5), Uniform()),
    "within": lambda policy: stepwell.within(stepwell.mix(policy, UNIFORM, 0.5), 0.2, 0.7),
    "within inside": lambda policy: stepwell.mix(stepwell.within(policy, 0.2, 0.7), UNIFORM, 0.5),
    "shift": lambda policy: stepwell.shift(stepwell.mix(policy, UNIFORM, 0.5), 3.0, stepwell.process("flow")),
    "warm_up": lambda policy: stepwell.warm_up(stepwell.mix(policy, UNIFORM, 0.5), 3),
    "twice": lambda policy: stepwell.mix(stepwell.mix(policy, UNIFORM, 0.25), UNIFORM, 1 / 3),
}


def reinforce(x: Tensor, u: Tensor, reward: Tensor, as_published: bool) -> dict[str, Tensor]:
    """The gradient of the first policy step, clipped to norm 1, by the formula and torch's own Beta."""
    network = PolicyNetwork(5, 0, 256 if as_published else 128, SEED, torch.device("cpu"))
    ab = torch.nn.functional.softplus(network(x)) + 1e-5
    beta = torch.distributions.Beta(*ab.unbind(1))
    if as_published:
        loss = -(beta.log_prob(u) * (reward / math.log(2) + 1e-2 * beta.entropy())).mean()
    else:
        # The share 0.1 of the reference is part of the density that the policy drew from.
        height = 0.9 * beta.log_prob(u).exp() + 0.1
        scaled = (reward - reward.mean()) / reward.std(correction=0)
        loss = -(scaled * height.log()).mean() - 1e-2 * beta.entropy().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("name", MIXED)
def test_in_a_mix_the_policy_learns_from_its_own_draws_alone(name: str, as_published: bool) -> None:
    policy, x0 = beta_policy(LINEAR, as_published=as_published), noise(64, 5)
    sampler = MIXED[name](policy)
    tick = due(sampler)
    drawn, spec = sampler.draw(x0, tick), decrease(sampler)
    assert drawn.action is not None
    u, own = drawn.action[:, -1], ~drawn.action[:, -1].isnan()
    assert 16 < int(own.sum()) < 48
    if name == "mix":
        assert torch.equal(own, tick.uniform("timestep", 64) >= 0.5)
        if not as_published:
            assert torch.equal(u[own], drawn.u[own])
    rewards = noise(64, 3, seed=2) / 10
    sampler.learn(told(tick, drawn.action, DecreaseSignal(noise(len(spec.grid)), rewards)))
    reward = (rewards.sum(1) if as_published else rewards.mean(1))[own]
    wanted = reinforce(x0[own], u[own], reward, as_published)
    (trained,) = policy.state_dict()["policy"].values()
    for part in ("linear.2.weight", "linear.2.bias"):
        # Adam's first moment is a tenth of the first gradient.
        error = (10 * trained["first"][part] - wanted[part]).norm() / wanted[part].norm()
        # The default's density is constant in each of 1000 bins.
        assert error < (1e-5 if as_published else 0.03), (part, error)


@pytest.mark.parametrize("credit", ["decrease", "alignment"])
def test_a_mix_that_never_asks_the_policy_leaves_it_alone(credit: str) -> None:
    policy, x0 = beta_policy(LINEAR, credit=credit), noise(16, 5)
    sampler = stepwell.mix(policy, UNIFORM, 1.0)
    start = policy.density(torch.linspace(0.01, 0.99, 30), x0)
    if credit == "decrease":
        for number in range(5):
            metrics = update(sampler, number, x0, lambda x, u: u)
    else:
        metrics = gradients(sampler, MIN_MEASUREMENTS + 2, in_two_bands, x0)
    assert all(value.isfinite() for value in metrics.values())
    assert torch.equal(policy.density(torch.linspace(0.01, 0.99, 30), x0), start)
    assert sampler.draw(x0, Tick()).u.isfinite().all()


@pytest.mark.parametrize("credit", ["decrease", "alignment"])
def test_in_a_mix_nothing_is_read_back_from_the_device(credit: str) -> None:
    sampler = stepwell.mix(beta_policy(LINEAR, credit=credit), UNIFORM, 0.5)
    ticks = [due(sampler, number) for number in range(2)]
    with accelerator():
        x0, nothing = torch.zeros(8, 3, 8, 8, device=DEVICE), torch.zeros(8, device=DEVICE)
        signal: Any = GradientSignal(0, torch.ones(2, 20, device=DEVICE), 16)
        if credit == "decrease":
            signal = DecreaseSignal(torch.ones(50, device=DEVICE), torch.ones(8, 3, device=DEVICE))
        for tick in ticks:
            with Copies() as copies:
                drawn = sampler.draw(x0, tick)
                metrics = sampler.learn(Feedback(tick, nothing, nothing, nothing, drawn.action, signal))
    assert all(value.device == DEVICE for value in metrics.values())
    assert copies.found == []

"""The Beta policy's updates: the paper's equations by hand, the official code by transcription."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from samplers.beta_policy.policy_updates import LINEAR, SEED, due, noise, told
from torch import Tensor

from stepwell.bound import step_kl
from stepwell.core.density import Uniform
from stepwell.core.feedback import DecreaseSignal, Feedback
from stepwell.core.tick import Tick
from stepwell.pacer import Pacer
from stepwell.samplers.beta_policy.beta import BetaTable, beta_entropy, beta_log_density
from stepwell.samplers.beta_policy.policy import PolicyNetwork
from stepwell.samplers.beta_policy.rewards import CORRECTED, PUBLISHED, Rules, advantage
from stepwell.samplers.beta_policy.sampler import beta_policy


def test_rewards_over_the_subset() -> None:
    rewards = torch.tensor([[1.0, 2.0, 6.0], [0.0, -3.0, 0.0]])
    assert CORRECTED.reward(rewards).tolist() == [3, -1]
    assert PUBLISHED.reward(rewards).tolist() == pytest.approx([9 / math.log(2), -3 / math.log(2)])


def test_the_advantage_by_hand() -> None:
    # Mean 3, deviations -2, 0, 2: standard deviation sqrt(8 / 3).
    assert advantage(torch.tensor([1.0, 3.0, 5.0])).tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])
    assert advantage(torch.tensor([2.0, 2.0])).tolist() == [0, 0]
    with_bad = torch.tensor([1.0, math.nan, 3.0, math.inf, 5.0])
    assert advantage(with_bad).tolist() == pytest.approx([-(1.5**0.5), 0, 0, 0, 1.5**0.5])
    small = advantage(torch.tensor([1e-9, 3e-9, 5e-9]))
    assert small.tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5], rel=1e-3)


def test_the_corrected_loss_by_hand() -> None:
    log_prob, entropy = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([-0.1, -0.2, -0.6])
    loss = CORRECTED.loss(log_prob, entropy, torch.tensor([1.0, 3.0, 5.0]), 0.01)
    assert float(loss.mean()) == pytest.approx(-(1.5**0.5) * 1.5 / 3 + 0.01 * 0.3)


def test_the_published_loss_by_hand() -> None:
    log_prob, entropy = torch.tensor([0.5, -1.0]), torch.tensor([-0.1, -0.2])
    loss = PUBLISHED.loss(log_prob, entropy, torch.tensor([1.0, 3.0]), 0.01)
    assert float(loss.mean()) == pytest.approx(-(0.5 * 0.999 - 2.998) / 2)


def test_the_papers_reinforce_without_a_baseline_is_an_option() -> None:
    rules = replace(CORRECTED, advantage=False)
    loss = rules.loss(torch.tensor([0.5, -1.0]), torch.tensor([-0.1, -0.3]), torch.tensor([1.0, 3.0]), 0.01)
    assert float(loss.mean()) == pytest.approx(2.5 / 2 + 0.01 * 0.2)


def test_the_density_is_that_of_torchs_beta() -> None:
    shapes, x = 0.3 + 5 * Tick().uniform("shapes", 20).view(10, 2), Tick(step=1).uniform("x", 10)
    expected = torch.distributions.Beta(*shapes.unbind(1)).log_prob(x)
    assert torch.allclose(beta_log_density(shapes, x), expected, atol=1e-5)
    assert beta_log_density(shapes, torch.zeros(10)).isfinite().all()
    assert beta_log_density(shapes, torch.ones(10)).isfinite().all()


def entropy_force(rules: Rules, pair: tuple[float, float], weight: float) -> Tensor:
    """The expected gradient of the loss with respect to the shapes when all rewards are 0."""
    shapes = torch.tensor([pair], dtype=torch.float64).requires_grad_()
    table = BetaTable(20_000, Uniform())
    middles, masses = (table.inner[1:] + table.inner[:-1]) / 2, table.masses(shapes)[0].detach()
    log_prob = beta_log_density(shapes.expand(len(middles), 2), middles)
    entropy = beta_entropy(shapes)
    # An expectation over draws: the mean of the loss, with each draw as often as it comes.
    each = torch.stack(
        [
            rules.loss(log_prob[k : k + 1], entropy, torch.zeros(1, dtype=torch.float64), weight) * masses[k]
            for k in range(0, len(middles), 20)
        ]
    )
    (gradient,) = torch.autograd.grad(each.sum() / masses[::20].sum(), shapes)
    return gradient[0]


@pytest.mark.parametrize("pair", [(0.8, 1.2), (2.0, 5.0), (12.0, 3.0)])
def test_the_entropy_bonus_pushes_with_its_weight(pair: tuple[float, float]) -> None:
    shapes = torch.tensor([pair], dtype=torch.float64).requires_grad_()
    (towards,) = torch.autograd.grad(beta_entropy(shapes).sum(), shapes)
    assert torch.allclose(entropy_force(CORRECTED, pair, 0.01), -0.01 * towards[0], rtol=1e-6)


def test_the_published_entropy_term_pushes_too_little() -> None:
    # Its expected force is |H| times the intended one: 0.07 of it for Beta(0.8, 1.2).
    pair = (2.0, 5.0)
    shapes = torch.tensor([pair], dtype=torch.float64)
    published, intended = entropy_force(PUBLISHED, pair, 0.01), entropy_force(CORRECTED, pair, 0.01)
    assert torch.allclose(published, -beta_entropy(shapes) * intended, rtol=0.02)
    mild = torch.tensor([(0.8, 1.2)], dtype=torch.float64)
    assert float(-beta_entropy(mild)) == pytest.approx(0.07, abs=0.005)


def test_one_update_as_published_is_the_transcription_of_the_official_code() -> None:
    sampler, x0 = beta_policy(LINEAR, as_published=True), noise(8, 3, 32, 32)
    network = PolicyNetwork(3, 2, 256, SEED, torch.device("cpu"))
    reference = torch.optim.Adam(network.parameters(), lr=1e-2)
    for number in range(3):
        tick = due(sampler, number)
        drawn = sampler.draw(x0, tick)
        assert drawn.action is not None
        u = drawn.action[:, -1]
        timestep = (drawn.u.double() * 1000).long()
        assert torch.equal(timestep, torch.round(u.double() * 999).long())
        rewards, row = noise(8, 3, seed=number) / 100, noise(1000, seed=number)
        sampler.learn(told(tick, drawn.action, DecreaseSignal(row, rewards)))

        ab = torch.nn.functional.softplus(network(x0)) + 1e-5
        beta = torch.distributions.Beta(ab[:, 0], ab[:, 1])
        reward = rewards.sum(1) / math.log(2) + 1e-2 * beta.entropy()
        loss = -(beta.log_prob(u) * reward).mean()
        reference.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        reference.step()
    weights = sampler.state_dict()["policy"]["3/2"]["weights"]
    for name, parameter in network.named_parameters():
        assert torch.allclose(weights[name], parameter, atol=2e-4), name
    moved = weights["linear.2.weight"].abs().max()
    assert moved > 0.005, "three steps of 1e-2 were taken"


def test_the_reward_as_published_is_the_fall_of_the_kl_in_bits() -> None:
    # Sums of three decreases may nearly cancel, as they do for other weights.
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    kls: list[tuple[Tensor, Tensor]] = []

    def loss_at(x0: Tensor, eps: Tensor, u: Tensor, condition: None) -> Tensor:
        problem = LINEAR.corrupt(x0, eps, u)
        output = model(problem.input)
        nats = step_kl(LINEAR, x0, problem.xt, output, u, "fixed-large")
        kls.append((u, nats.detach() / 4 / math.log(2)))
        return (output - problem.target).square().mean(1)

    sampler = beta_policy(LINEAR, as_published=True, every_steps=1)
    heard: list[Feedback] = []
    learn = sampler.learn
    sampler.learn = lambda feedback: heard.append(feedback) or learn(feedback)  # type: ignore[method-assign]
    pacer = Pacer(sampler, LINEAR, loss_at=loss_at, optimizer=optimizer, network=model)
    x0 = noise(6, 4)
    pace = pacer.draw(x0, Tick())
    loss_at(x0, noise(6, 4, seed=1), pace.u, None).mean().backward()
    kls.clear()
    pacer.before_update()
    optimizer.step()
    pacer.after_update()
    signal = heard[0].signal
    assert isinstance(signal, DecreaseSignal)
    # The whole batch at one time is a measurement at S, before and then after the update.
    at = {
        time: [kl for u, kl in kls if (u == u[0]).all() and float(u[0]) == pytest.approx(time)]
        for time in (0.0005, 0.0015, 0.0025)
    }
    assert all(len(found) == 2 for found in at.values())
    expected = sum(before - after for before, after in at.values())
    assert torch.allclose(PUBLISHED.reward(signal.rewards.double()), expected, rtol=1e-3, atol=1e-6)


def test_one_corrected_update_is_its_formula() -> None:
    sampler, x0, table = beta_policy(LINEAR), noise(16, 5), BetaTable(1000, Uniform(), 0.1)
    network = PolicyNetwork(5, 0, 128, SEED, torch.device("cpu"))
    reference, tick = torch.optim.Adam(network.parameters(), lr=1e-2), due(sampler)
    drawn = sampler.draw(x0, tick)
    rewards = noise(16, 3, seed=2) * 1e-4
    sampler.learn(told(tick, drawn.action, DecreaseSignal(noise(50), rewards)))
    ab = torch.nn.functional.softplus(network(x0)) + 1e-5
    reward = rewards.mean(1)
    scaled = (reward - reward.mean()) / reward.std(correction=0)
    height = table.masses(ab).gather(1, (drawn.u.double() * 1000).long()[:, None])[:, 0] * 1000
    assert torch.allclose(height.log(), drawn.log_prob, atol=1e-4)
    loss = -(scaled * height.log()).mean() - 1e-2 * torch.distributions.Beta(*ab.unbind(1)).entropy().mean()
    loss.backward()
    reference.step()
    weights = sampler.state_dict()["policy"]["5/0"]["weights"]
    assert torch.allclose(weights["linear.2.weight"], network.linear[2].weight, atol=1e-5)
    assert weights["linear.2.weight"].abs().max() > 0.009

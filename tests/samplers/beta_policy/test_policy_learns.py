"""The Beta policy moves to where rewards are, keeps every timestep, and comes back."""

from __future__ import annotations

import math

import pytest
import torch
from cases import case
from odds import assert_uniform
from samplers.beta_policy.policy_updates import LINEAR, decrease, in_band, noise, told, update
from torch import Tensor

from stepwell.core.tick import Tick
from stepwell.samplers.beta_policy.beta import beta_entropy
from stepwell.samplers.beta_policy.sampler import beta_policy


@pytest.mark.parametrize("conditional", [case(each, quick=each) for each in (True, False)])
def test_a_reward_for_a_band_moves_the_draws_there(conditional: bool) -> None:
    sampler, x0 = beta_policy(LINEAR, conditional=conditional), noise(64, 6)
    for number in range(150):
        metrics = update(sampler, number, x0, in_band)
    band = torch.tensor([0.2, 0.4], dtype=torch.float64)
    sampler.draw(x0, Tick())
    # A fifth of uniform draws.
    assert float(sampler.masses(band)) > 0.6
    assert float(metrics["top_tenth_mass"]) > 0.25
    assert float(metrics["policy_entropy"]) < -0.3


def test_the_policy_learns_which_example_wants_which_time() -> None:
    sampler, x0 = beta_policy(LINEAR), noise(64, 6)

    def reward(x: Tensor, u: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 0, u, 1 - u)

    for number in range(100):
        update(sampler, number, x0, reward)
    high, low = noise(64, 6, seed=1), noise(64, 6, seed=2)
    high[:, 0], low[:, 0] = 1.5, -1.5
    late = [1 - float(sampler.cdf(torch.tensor([0.5]), x)) for x in (high, low)]
    assert late[0] > 0.75
    assert late[1] < 0.25
    # Each draw's probability is its own example's, not the batch's.
    both = torch.cat([high[:3], low[:3]])
    drawn = sampler.draw(both, Tick(step=3))
    own = torch.cat([sampler.density(drawn.u[k : k + 1], both[k : k + 1]) for k in range(6)])
    assert torch.allclose(drawn.log_prob, own.log(), atol=1e-4)
    assert not torch.allclose(drawn.log_prob, sampler.density(drawn.u, both).log(), atol=0.05)


def test_draws_of_a_learned_policy_follow_its_density() -> None:
    # Fails once in a million.
    sampler, x0 = beta_policy(LINEAR), noise(64, 6)
    for number in range(60):
        update(sampler, number, x0, in_band)
    u = torch.cat([sampler.draw(x0, Tick(seed=9, step=step)).u for step in range(200)])
    assert_uniform(sampler.cdf(u.double(), x0))


@pytest.mark.parametrize("end", [0.0, 1.0])
def test_no_reward_can_starve_a_timestep(end: float) -> None:
    sampler, x0 = beta_policy(LINEAR, learning_rate=0.1), noise(64, 6)
    for number in range(60):
        metrics = update(sampler, number, x0, lambda x, u: 1 - (u - end).abs() ** 0.1)
    density = sampler.density((torch.arange(1000) + 0.5) / 1000)
    assert density.min() >= 0.1 * (1 - 1e-4)
    # Not even in the timestep that is paid best: the shapes are bounded.
    assert density.max() < 200
    assert min(float(metrics["policy_a"]), float(metrics["policy_b"])) >= 0.5
    assert max(float(metrics["policy_a"]), float(metrics["policy_b"])) < 32.001


def test_a_policy_that_went_to_one_end_comes_back() -> None:
    sampler, x0 = beta_policy(LINEAR, learning_rate=0.1), noise(64, 6)
    for number in range(50):
        update(sampler, number, x0, lambda x, u: -u)
    assert float(sampler.cdf(torch.tensor([0.5]), x0)) > 0.85
    for number in range(50, 150):
        update(sampler, number, x0, lambda x, u: u)
    assert float(sampler.cdf(torch.tensor([0.5]), x0)) < 0.3


def test_metrics_say_how_the_policy_is() -> None:
    sampler, x0 = beta_policy(LINEAR), torch.zeros(100, 2)
    reward = torch.arange(100.0)
    metrics = update(sampler, 1, x0, lambda x, u: reward)
    assert all(value.dim() == 0 for value in metrics.values())
    assert float(metrics["reward"]) == pytest.approx(49.5)
    assert float(metrics["reward_snr"]) == pytest.approx(49.5 / (28.866 / 10), rel=1e-3)
    sampler.draw(x0, Tick())
    after = sampler.state_dict()["shapes"][0]
    assert float(metrics["policy_a"]) == pytest.approx(float(after[0]))
    assert float(metrics["policy_b"]) == pytest.approx(float(after[1]))
    assert float(metrics["policy_entropy"]) == pytest.approx(float(beta_entropy(after[None])))
    heights = sampler.density((torch.arange(1000) + 0.5) / 1000)
    tenth = heights.sort().values[-100:].sum() / 1000
    assert float(metrics["top_tenth_mass"]) == pytest.approx(float(tenth), rel=1e-4)
    fresh = beta_policy(LINEAR).density((torch.arange(1000) + 0.5) / 1000)
    moved = (heights - fresh).abs().mean() / 2
    assert float(metrics["policy_move"]) == pytest.approx(float(moved), rel=1e-3)
    assert sampler.learn(told(Tick(), None, None)) == {}


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_leaves_a_policy(bad: float, as_published: bool) -> None:
    sampler, x0 = beta_policy(LINEAR, as_published=as_published), noise(8, 3)
    for number in range(5):
        row = noise(len(decrease(sampler).grid), seed=number)
        row[number] = bad
        update(sampler, number, x0, lambda x, u: torch.where(u > 0.5, bad, u), row)
    drawn = sampler.draw(x0, Tick())
    assert drawn.log_prob.isfinite().all()
    assert sampler.density(torch.linspace(0, 0.99, 50)).isfinite().all()

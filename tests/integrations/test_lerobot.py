"""LeRobot's policies, by their interface: a model draws its time inside, or is given the one it sampled."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from odds import assert_follows_masses
from torch import Tensor, nn

import stepwell
from stepwell.core.density import edges
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.integrations import lerobot

BINS = 50


class Model(nn.Module):
    """SmolVLA's: without a time it samples one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 2)
        self.times: list[Tensor] = []

    def sample_time(self, bsize: int, device: Any) -> Tensor:
        return torch.distributions.Beta(1.5, 1.0).sample((bsize,)).to(device) * 0.999 + 0.001

    def forward(
        self, images: list[Tensor], state: Tensor, actions: Tensor, noise: Any = None, time: Any = None
    ) -> Tensor:
        noise = torch.randn_like(actions) if noise is None else noise
        time = self.sample_time(len(actions), actions.device) if time is None else time
        self.times.append(time)
        share = time[:, None, None]
        mixed = share * noise + (1 - share) * actions
        around = torch.stack([images[0].mean((1, 2, 3)), state[:, 0], state[:, 1], time], 1)
        shown = torch.cat([mixed, around[:, None].expand(-1, mixed.shape[1], -1)], 2)
        return (self.net(shown) - (noise - actions)).square()


class SmolVla(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config, self.model = SimpleNamespace(), Model()

    def forward(self, batch: dict[str, Any], time: Any = None) -> Tensor:
        return self.model.forward(batch["images"], batch["state"], batch["actions"], None, time).mean()


class Pi0(SmolVla):
    """Asks its model for noise and times first."""

    def forward(self, batch: dict[str, Any], time: Any = None) -> Tensor:
        time = self.model.sample_time(len(batch["actions"]), "cpu") if time is None else time
        noise = torch.randn_like(batch["actions"])
        return self.model.forward(batch["images"], batch["state"], batch["actions"], noise, time).mean()


def batch(size: int = 16) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    shapes = {"images": (size, 3, 4, 4), "state": (size, 2), "actions": (size, 5, 2)}
    made: dict[str, Any] = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {**made, "images": [made["images"]]}


def train(policy: Any, steps: int, optimizer: Any) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = policy(batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


each_policy = pytest.mark.parametrize("kind", [SmolVla, Pi0])


@each_policy
def test_a_policy_fed_the_recorded_times_has_the_same_losses(kind: type[SmolVla]) -> None:
    policy = kind()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    process = lerobot.process_of(policy)
    sampler = stepwell.sampler("auto", process, unbiased=False)
    lerobot.pace(policy, stepwell.Pacer(sampler, process).attach(optimizer))
    torch.manual_seed(1)
    paced = train(policy, 6, optimizer)

    fed = kind()
    times = iter(policy.model.times)
    fed.model.sample_time = lambda bsize, device: next(times)  # type: ignore[method-assign]
    torch.manual_seed(1)
    assert train(fed, 6, torch.optim.SGD(fed.parameters(), lr=0.1)) == paced
    assert next(times, None) is None


@each_policy
def test_times_are_the_samplers_and_losses_have_its_weights(kind: type[SmolVla]) -> None:
    policy = kind()
    process = lerobot.process_of(policy)
    sampler = stepwell.sampler("table", process, masses=[1.0, 3.0], unbiased=True)
    pacer, raw = stepwell.Pacer(sampler, process), []
    own = policy.model.forward
    signature = inspect.signature(own)

    def noted(*args: Any, **kwargs: Any) -> Tensor:
        raw.append(own(*args, **kwargs))
        return raw[-1]

    noted.__signature__ = signature  # type: ignore[attr-defined]
    policy.model.forward = noted  # type: ignore[method-assign]
    lerobot.pace(policy, pacer)
    loss = policy(batch())
    u = (policy.model.times[0] - 0.001) / 0.999
    assert torch.allclose(u, pacer.sampler.draw(batch()["actions"], stepwell.Tick()).u, atol=1e-6)
    weight = process.reference.pdf(u) / torch.where(u < 0.5, 0.5, 1.5)
    assert loss.item() == pytest.approx((raw[0].mean((1, 2)) * weight).mean().item(), rel=1e-4)


def test_the_reference_is_the_policys_own_density() -> None:
    policy = SmolVla()
    own = (policy.model.sample_time(40_000, "cpu").double() - 0.001) / 0.999
    masses = lerobot.process_of(policy).reference.masses(edges(BINS))
    assert_follows_masses((own * BINS).long().clamp(0, BINS - 1), masses)


def test_a_policys_own_numbers_are_read() -> None:
    policy = SmolVla()
    policy.config = SimpleNamespace(time_sampling_beta_alpha=1.0, time_sampling_beta_beta=1.0)
    assert lerobot.process_of(policy).reference.masses(edges(4)).tolist() == pytest.approx([0.25] * 4)


@each_policy
def test_given_times_and_evaluation_are_left_alone(kind: type[SmolVla]) -> None:
    policy = kind()
    process = lerobot.process_of(policy)
    pacer = lerobot.pace(policy, stepwell.Pacer("uniform", process))
    policy(batch(), time=torch.full((16,), 0.25))
    policy.eval()
    policy(batch())
    assert pacer.draws == 0
    assert policy.model.times[0].unique().tolist() == [0.25]
    assert len(policy.model.times[1].unique()) == 16


def test_a_sampler_that_measures_learns() -> None:
    policy = SmolVla()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    losses = lerobot.loss_at(policy)
    sampler = stepwell.sampler("neyman", losses.process, every_steps=1, strata=4, images=4)
    pacer = stepwell.Pacer(sampler, losses.process, loss_at=losses).attach(optimizer)
    lerobot.pace(policy, pacer)
    train(policy, 8, optimizer)
    assert "variance_ratio" in pacer.metrics


def test_losses_at_chosen_times_are_those_of_the_model() -> None:
    policy, made = SmolVla(), batch()
    noise, u = torch.randn(16, 5, 2), torch.linspace(0.02, 0.98, 16)
    condition = {"images": made["images"], "state": made["state"]}
    found = lerobot.loss_at(policy)(made["actions"], noise, u, condition)
    expected = policy.model(**condition, actions=made["actions"], noise=noise, time=0.001 + 0.999 * u)
    assert torch.allclose(found, expected.mean((1, 2)))


def test_what_cannot_be_paced_is_refused() -> None:
    with pytest.raises(Unsupported, match="no part whose forward takes actions"):
        lerobot.pace(nn.Linear(2, 2), stepwell.Pacer("uniform", "flow"))
    with pytest.raises(InvalidParameter, match="process_of"):
        lerobot.pace(SmolVla(), stepwell.Pacer("uniform", "linear"))

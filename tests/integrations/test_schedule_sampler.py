"""A pacer as guided-diffusion's schedule sampler: what their TrainLoop asks of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from protocols import QUICK, Tiny, batch
from torch import Tensor, nn

import stepwell
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.integrations.schedule_sampler import PacedScheduleSampler
from stepwell.pacer import Pacer


def schedule(name: str, **more: Any) -> tuple[PacedScheduleSampler, Any, Any, Any]:
    import guided_protocol as guided

    diffusion, network = guided.GaussianDiffusion(), Tiny()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    sampler = stepwell.sampler(name, stepwell.process_from(diffusion), **more)
    ready = stepwell.loss_at.guided_diffusion(diffusion, network)
    pacer = Pacer(sampler, diffusion, loss_at=ready).attach(optimizer)
    return PacedScheduleSampler(pacer, guided.LossAwareSampler), diffusion, network, optimizer


def test_a_schedule_sampler_has_the_types_that_their_loop_expects() -> None:
    sampler, diffusion, *_ = schedule("logit-normal")
    t, weights = sampler.sample(16, "cpu")
    assert t.dtype == torch.int64
    assert t.shape == weights.shape == (16,)
    assert 0 <= int(t.min()) <= int(t.max()) < diffusion.num_timesteps
    found = sampler.weights()
    assert found.shape == (diffusion.num_timesteps,)
    assert found.sum() == pytest.approx(1)


def test_their_isinstance_is_satisfied_and_losses_arrive() -> None:
    import guided_protocol as guided

    sampler, diffusion, network, optimizer = schedule("loss-ema")
    assert isinstance(sampler, guided.LossAwareSampler)
    for step in range(3):
        for _ in range(2):
            x = batch(step)
            t, weights = sampler.sample(len(x), "cpu")
            losses = diffusion.training_losses(network, x, t)["loss"]
            sampler.update_with_local_losses(t, losses.detach())
            (losses * weights).mean().backward()
        optimizer.step()
    # A share of uniform draws remains where no loss was observed.
    assert sampler.pacer.state_dict()["counter"]["step"] == 3
    assert sampler.weights().std() > 0


def test_losses_of_all_ranks_are_those_of_one_alone() -> None:
    one, two = schedule("loss-ema")[0], schedule("loss-ema")[0]
    losses = torch.linspace(0.1, 1, 8)
    for sampler, tell in ((one, one.update_with_local_losses), (two, two.update_with_all_losses)):
        t, _ = sampler.sample(8)
        tell(t, losses if sampler is one else losses.tolist())
        sampler.pacer.detach()
    assert torch.equal(torch.from_numpy(one.weights()), torch.from_numpy(two.weights()))


def test_a_measuring_schedule_sampler_asks_for_the_examples() -> None:
    sampler, *_ = schedule("neyman", **QUICK)
    with pytest.raises(
        InvalidParameter, match=r"write schedule_sampler\.sample\(micro, device, micro_cond\)"
    ):
        sampler.sample(8, "cpu")
    with pytest.raises(InvalidParameter, match="loss_aware=LossAwareSampler"):
        PacedScheduleSampler(Pacer("loss-ema", "linear"))
    with pytest.raises(InvalidParameter, match="whole numbers"):
        PacedScheduleSampler(Pacer("uniform", "flow"))


def test_master_parameters_are_refused_and_explicit_calls_work() -> None:
    """fp16 in guided-diffusion: the optimizer moves copies, and `optimize` says whether it did."""
    import guided_protocol as guided

    diffusion, network = guided.GaussianDiffusion(), Tiny()
    master = [nn.Parameter(parameter.detach().clone()) for parameter in network.parameters()]
    opt = torch.optim.SGD(master, lr=0.1)
    ready = stepwell.loss_at.guided_diffusion(diffusion, network)

    def run(pacer: Pacer, explicit: bool) -> None:
        for step, overflows in enumerate((False, True, False)):
            x = batch(step)
            t = pacer.draw(x).timesteps
            network.zero_grad()
            diffusion.training_losses(network, x, t)["loss"].mean().backward()
            if explicit:
                pacer.before_update()
            if not overflows:
                for copied, own in zip(master, network.parameters(), strict=True):
                    copied.grad = own.grad
                opt.step()
                for copied, own in zip(master, network.parameters(), strict=True):
                    own.data.copy_(copied.data)
            if explicit:
                pacer.after_update(skipped=overflows)

    quick = stepwell.sampler("neyman", ready.process, **QUICK)
    hooked = Pacer(quick, diffusion, loss_at=ready).attach(opt)
    with pytest.raises(Unsupported, match="depends on no parameter that the optimizer moves"):
        run(hooked, explicit=False)
    hooked.detach()
    named = torch.optim.SGD(network.parameters(), lr=0.0)
    pacer = Pacer(quick, diffusion, loss_at=ready, optimizer=named)
    run(pacer, explicit=True)
    assert pacer.state_dict()["counter"]["step"] == 2


def test_another_number_of_timesteps_is_noticed() -> None:
    import guided_protocol as guided

    long, short = guided.GaussianDiffusion(), guided.GaussianDiffusion()
    short.betas, short.alphas_cumprod = short.betas[::4], short.alphas_cumprod[::4]
    ready = stepwell.loss_at.guided_diffusion(long, Tiny())
    with pytest.raises(
        InvalidParameter, match=r"loss_at was made for .*timesteps=1000.* for .*250 timesteps"
    ):
        Pacer("neyman", short, loss_at=ready)


def test_a_schedule_sampler_continues_where_it_was() -> None:
    def trained(steps: range, sampler: Any, diffusion: Any, network: Any, optimizer: Any) -> list[Tensor]:
        drawn = []
        for step in steps:
            x = batch(step)
            t, weights = sampler.sample(x, "cpu", {"y": torch.ones(8)})
            drawn.append(t)
            condition = {"y": torch.ones(8)}
            losses = diffusion.training_losses(network, x, t, condition, noise=batch(100 + step))["loss"]
            (losses * weights).mean().backward()
            optimizer.step()
        return drawn

    whole = schedule("neyman", **QUICK)
    expected = trained(range(8), *whole)
    first = schedule("neyman", **QUICK)
    trained(range(4), *first)
    again = schedule("neyman", **QUICK)
    again[2].load_state_dict(first[2].state_dict())
    again[2].gain.grad = first[2].gain.grad.clone()
    again[0].load_state_dict(copy.deepcopy(first[0].state_dict()))
    for one, two in zip(trained(range(4, 8), *again), expected[4:], strict=True):
        assert torch.equal(one, two)


def test_the_weights_correct_whatever_is_in_the_loss() -> None:
    """Their "loss" of learn_sigma has a second term: E[weight x loss] is uniform's for any loss of t."""
    masses = [30.0, 1.0, 4.0, 1.0, 20.0]
    sampler, *_ = schedule("table", masses=masses, unbiased=True)
    t, weights = sampler.sample(4096, "cpu")
    chance = torch.tensor(masses)[t // 200] / sum(masses) / 200
    torch.testing.assert_close(weights * chance * 1000, torch.ones(4096))

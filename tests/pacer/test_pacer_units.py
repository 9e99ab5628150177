"""A pace in the host's units: timesteps, indices, sigmas; and weights that are applied once."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler

import stepwell
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.pacer import Pacer

X0 = torch.zeros(512, 2)


def test_discrete_timesteps_are_whole_numbers_of_the_scheduler() -> None:
    scheduler = DDPMScheduler(num_train_timesteps=100)
    pace = Pacer("uniform", scheduler).draw(X0)
    assert pace.timesteps.dtype == torch.int64
    assert (pace.timesteps.min(), pace.timesteps.max()) == (0, 99)
    assert torch.equal(scheduler.timesteps[pace.indices], pace.timesteps)
    signal = scheduler.alphas_cumprod[pace.timesteps]
    torch.testing.assert_close(pace.sigma, (1 - signal).sqrt(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_flow_timesteps_are_the_schedulers_own_numbers(shift: float) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    pace = Pacer("logit-normal", scheduler).draw(X0)
    # Exactly: diffusers' loops find sigmas by `schedule_timesteps == t`.
    assert torch.equal(scheduler.timesteps[pace.indices], pace.timesteps)
    torch.testing.assert_close(scheduler.sigmas[pace.indices], pace.sigma)
    torch.testing.assert_close(pace.timesteps, pace.process.time(pace.u))
    assert pace.indices[pace.u.argmax()] == pace.indices.min(), "index 0 is noise"


def test_sigma_is_what_edm_and_flows_count_in() -> None:
    edm = Pacer("uniform", "edm").draw(X0)
    torch.testing.assert_close(edm.timesteps, edm.sigma.log() / 4)
    flow = Pacer("uniform", "flow").draw(X0)
    torch.testing.assert_close(flow.timesteps, 1000 * flow.sigma)
    with pytest.raises(Unsupported, match="continuous time, which has no indices"):
        print(flow.indices)


def test_a_weighting_of_the_hosts_is_known_and_not_applied_twice() -> None:
    own = Pacer("loss-ema", "linear", "min-snr")
    hosts = Pacer("loss-ema", "linear", host_weighting="min-snr")
    given, left = own.draw(X0), hosts.draw(X0)
    assert torch.equal(left.weight, left.correction)
    weight = stepwell.weighting("min-snr")(own.process, given.u)
    torch.testing.assert_close(given.weight, left.weight * weight)
    for pacer, pace in ((own, given), (hosts, left)):
        pacer.observe(1 + pace.u)
        pacer.before_update()
        pacer.after_update()
    u = torch.linspace(0.01, 0.99, 50)
    assert torch.equal(own.sampler.density(u), hosts.sampler.density(u)), (
        "both learn from the weighted losses"
    )
    with pytest.raises(InvalidParameter, match="would weight one loss twice"):
        Pacer("uniform", "linear", "p2", host_weighting="min-snr")


def test_a_loss_of_another_process_is_refused() -> None:
    network, twin = torch.nn.Linear(2, 2), DDPMScheduler(num_train_timesteps=1000)
    for other in (
        DDPMScheduler(num_train_timesteps=100),
        DDPMScheduler(prediction_type="v_prediction"),
        FlowMatchEulerDiscreteScheduler(),
    ):
        with pytest.raises(InvalidParameter, match=r"loss_at was made for .* give both the same scheduler"):
            Pacer("neyman", twin, loss_at=stepwell.loss_at.diffusers(network, other))
    Pacer("neyman", DDPMScheduler(), loss_at=stepwell.loss_at.diffusers(network, twin))

"""diffusers' `compute_density_for_timestep_sampling` and ours, counted in timesteps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler
from diffusers.training_utils import compute_density_for_timestep_sampling
from hosts import Host, recorded
from scipy import stats
from torch import Tensor

import stepwell
from stepwell.core.errors import InvalidParameter
from stepwell.integrations.density import HostDensity, density_from
from stepwell.pacer import CallOrderError, Pacer

SCHEDULER = FlowMatchEulerDiscreteScheduler(shift=3.0)
DRAWS = 20_000


def timesteps(density: Callable[..., Tensor], **options: Any) -> Tensor:
    """As SD3 and Flux scripts get them: places in a list that falls from 1000."""
    u = density(weighting_scheme=options.pop("weighting_scheme", "none"), batch_size=DRAWS, **options)
    indices = (u * SCHEDULER.config.num_train_timesteps).long()
    return SCHEDULER.timesteps[indices]


def ours(name: str, **parameters: Any) -> Tensor:
    return timesteps(density_from(Pacer(stepwell.sampler(name, SCHEDULER, **parameters), SCHEDULER)))


def theirs(**options: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return timesteps(compute_density_for_timestep_sampling, generator=generator, **options)


def alike(one: Tensor, two: Tensor) -> float:
    """The probability of so large a difference, if both have one distribution (Kolmogorov-Smirnov)."""
    return float(stats.ks_2samp(one.numpy(), two.numpy()).pvalue)


@pytest.mark.parametrize(
    ("name", "parameters", "options"),
    [
        ("uniform", {}, {}),
        # Their u is 0 at noise: the sign of the mean changes.
        ("logit-normal", {"mean": -0.8, "std": 0.7}, {"logit_mean": 0.8, "logit_std": 0.7}),
        ("logit-normal", {}, {"logit_mean": 0.0, "logit_std": 1.0}),
        ("mode", {"scale": 1.29}, {"mode_scale": 1.29}),
        ("mode", {"scale": -0.5}, {"mode_scale": -0.5}),
    ],
)
def test_the_same_timesteps_are_drawn(name: str, parameters: Any, options: Any) -> None:
    # Fixed seeds. With others each case fails once in a million.
    scheme = {"uniform": "none", "logit-normal": "logit_normal"}.get(name, name)
    assert alike(ours(name, **parameters), theirs(weighting_scheme=scheme, **options)) > 1e-6


def test_a_reversed_axis_would_be_seen() -> None:
    one = ours("logit-normal", mean=0.8, std=0.7)
    assert alike(one, theirs(weighting_scheme="logit_normal", logit_mean=0.8, logit_std=0.7)) < 1e-100
    assert one.mean() > ours("logit-normal", mean=-0.8, std=0.7).mean()


def test_the_signature_is_theirs() -> None:
    def names(function: Any) -> list[tuple[str, Any]]:
        found = inspect.signature(function).parameters.values()
        return [(one.name, one.default) for one in found if one.name != "self"]

    assert names(HostDensity.__call__) == names(compute_density_for_timestep_sampling)


@pytest.mark.parametrize("process", ["flow", "linear", DDPMScheduler(num_train_timesteps=7), SCHEDULER])
def test_every_u_is_the_place_that_was_drawn(process: Any) -> None:
    density = density_from(Pacer("uniform", process))
    u = density("none", 4096)
    assert u.min() >= 0
    assert u.max() < 1
    count = density.pace.process.timesteps
    if count is None:
        torch.testing.assert_close(u, 1 - density.pace.u)
    else:
        assert torch.equal((u * count).long(), density.pace.indices)


def test_a_sampler_that_learns_from_losses_moves_the_hosts_draws() -> None:
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    pacer = Pacer("loss-ema", SCHEDULER).attach(optimizer)
    density = density_from(pacer)
    for _ in range(150):
        u = density("none", 64)
        pacer.observe(torch.where(u < 0.5, 4.0, 1.0))  # four times the loss in the noisy half
        (weight * 0).backward()
        optimizer.step()
    u = density("none", DRAWS)
    assert 0.7 < float((u < 0.5).float().mean()) < 0.85
    # Uniform draws would need no correction; these are corrected back to them.
    assert float(density.pace.weight.mean()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", ["neyman", "gradient-variance", "beta-policy"])
def test_samplers_that_measure_are_told_what_to_write(name: str) -> None:
    sampler = stepwell.sampler(name, SCHEDULER, **({"target": "simple"} if name == "beta-policy" else {}))
    network = torch.nn.Linear(1, 1)
    pacer = Pacer(sampler, SCHEDULER, loss_at=lambda x0, noise, u, condition: u, network=network)
    with pytest.raises(InvalidParameter, match=r"pace = pacer\.draw\(model_input\) .* pace\.indices"):
        density_from(pacer)


def test_other_mistakes() -> None:
    with pytest.raises(InvalidParameter, match=r"needs a stepwell\.Pacer, not str"):
        density_from("logit-normal")  # type: ignore[arg-type]
    with pytest.raises(CallOrderError, match="call the function before"):
        _ = density_from(Pacer("uniform", SCHEDULER)).pace


def test_the_sd3_example_trains_with_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    density = density_from(Pacer("logit-normal", SCHEDULER))
    shown: list[Tensor] = []
    with recorded():
        module = Host("diffusers_sd3", lambda *_: None).module(paced=False)
        monkeypatch.setattr(module.training_utils, "compute_density_for_timestep_sampling", density)
        made = module.tiny_transformer

        def watched() -> Any:
            transformer = made()
            transformer.register_forward_pre_hook(
                lambda _, args, kwargs: shown.append(kwargs["timestep"]), with_kwargs=True
            )
            return transformer

        monkeypatch.setattr(module, "tiny_transformer", watched)
        module.main(1)
    # The second forward pass is the training step's, between the two held-out losses.
    assert torch.equal(shown[1], density.pace.timesteps)

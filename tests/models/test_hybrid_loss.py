"""A learned variance through an ADM-style network: no weighting changes its term, every correction does."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from stepwell.catalogue import build as named
from stepwell.core.noise import normal
from stepwell.core.process import NoiseProcess
from stepwell.core.tick import Tick
from stepwell.models import unet
from stepwell.models.denoiser import Condition, Denoiser, NetworkSpec
from stepwell.objective import Losses, Objective
from stepwell.train.step import train_step

PROCESS = named.process("cosine", timesteps=1000)


def network() -> Denoiser:
    torch.manual_seed(0)
    spec = NetworkSpec(channels=2, image_size=8, classes=3, learned_variance=True)
    settings = {**unet.SIZES["adm-small"].settings, "norm_num_groups": 4, "attn_norm_num_groups": 4}
    size = unet.Size((8, 16), 1, (1,), settings | {"attention_head_dim": 8}, residual_resampling=True)
    return Denoiser(unet.network("adm", spec, size), classes=3, learned_variance=True)


def losses(denoiser: Denoiser, weighting: str) -> Losses:
    draws = torch.Generator().manual_seed(1)
    x0, noise = torch.randn(2, 6, 2, 8, 8, generator=draws).clamp(-1, 1)
    objective = Objective(PROCESS, named.weighting(weighting))
    return objective(denoiser, x0, noise, torch.linspace(0.05, 0.95, 6), Condition(torch.arange(6) % 3))


def test_min_snr_does_not_reach_the_variance() -> None:
    denoiser = network()
    plain, weighted = losses(denoiser, "none"), losses(denoiser, "min-snr")
    assert (weighted.extra > 0).all()
    assert torch.equal(plain.extra, weighted.extra)
    assert torch.equal(plain.plain, weighted.plain)
    assert not torch.allclose(plain.weighted, weighted.weighted)


def gradient(denoiser: Denoiser, loss: Tensor) -> Tensor:
    """Of the last layer's bias: two channels of the mean, then two of the variance."""
    (found,) = torch.autograd.grad(loss, denoiser.network.conv_out.bias, retain_graph=True)
    return found


def test_the_mean_learns_from_the_weighted_error_and_the_variance_from_the_bound() -> None:
    denoiser = network()
    found = losses(denoiser, "min-snr")
    of_extra, of_weighted = (gradient(denoiser, part.mean()) for part in (found.extra, found.weighted))
    assert of_extra[:2].abs().max() == 0
    assert (of_extra[2:].abs() > 0).all()
    assert (of_weighted[:2].abs() > 0).all()
    assert of_weighted[2:].abs().max() == 0


def stepped(process: NoiseProcess, pace: Any) -> tuple[Tensor, Tensor]:
    """The loss of one training step at these draws, and what it leaves in the last layer's bias."""
    denoiser, seen = network(), []

    def clip(*_: Any) -> Tensor:
        seen.append(denoiser.network.conv_out.bias.grad.clone())
        return torch.zeros(())

    with_noise = SimpleNamespace(
        u=pace.u, correction=pace.correction, noise_like=lambda x0: normal(x0, Tick(0, 0))
    )
    nothing = SimpleNamespace(apply=lambda *_: None, step=lambda *_: None, zero_grad=lambda: None)
    x0 = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    training = SimpleNamespace(
        accelerator=SimpleNamespace(
            process_index=0,
            num_processes=1,
            device=torch.device("cpu"),
            backward=lambda loss: loss.backward(),
            clip_grad_norm_=clip,
            scaler=None,
        ),
        pacer=SimpleNamespace(
            draw=lambda *_: with_noise,
            observe=lambda _: None,
            before_update=lambda: None,
            after_update=lambda _: {},
        ),
        batches=SimpleNamespace(at=lambda *_: x0),
        encode=lambda batch: (batch, Condition(torch.arange(6) % 3)),
        synchronised=lambda last: nullcontext(),
        objective=Objective(process, named.weighting("min-snr")),
        denoiser=denoiser,
        seed=0,
        accumulate=1,
        clip=None,
        learning_rate=nothing,
        optimizer=nothing,
        ema=nothing,
    )
    report = train_step(training, 0)  # type: ignore[arg-type]
    return report.loss, seen[0]


def test_the_samplers_correction_is_on_every_term() -> None:
    u = torch.linspace(0.05, 0.95, 6)
    once, thrice = (
        stepped(PROCESS, SimpleNamespace(u=u, correction=torch.full((6,), by)))[1] for by in (1.0, 3.0)
    )
    torch.testing.assert_close(thrice, 3 * once)
    assert (once.abs() > 0).all()


def test_a_corrected_sampler_leaves_the_hybrid_objective_and_its_gradient_as_uniform_has_them() -> None:
    # All of a batch at one of 8 timesteps, with the same noise: both expectations are sums of 8 terms.
    process, masses = named.process("cosine", timesteps=8), [30.0, 1.0, 4.0, 1.0, 1.0, 2.0, 1.0, 20.0]
    sampler = named.sampler("table", process, masses=masses, unbiased=True)
    chances = torch.tensor(masses) / sum(masses)
    middles = chances.cumsum(0) - chances / 2
    found = torch.zeros(5)
    wanted = torch.zeros(5)
    for chance, middle in zip(chances, middles, strict=True):
        draw = sampler.from_uniform(middle.expand(6), torch.zeros(6, 1), Tick(step=0))
        uniform = SimpleNamespace(u=draw.u, correction=torch.ones(6))
        found += chance * torch.cat([one.detach().reshape(-1) for one in stepped(process, draw)])
        wanted += torch.cat([one.detach().reshape(-1) for one in stepped(process, uniform)]) / 8
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)

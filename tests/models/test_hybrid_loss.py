"""A learned variance through an ADM-style network: its term is nobody's to re-weight."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from stepwell.catalogue import build as named
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


def stepped(correction: float) -> Tensor:
    """What one training step leaves in the last layer's bias when the sampler corrects by this much."""
    denoiser, seen = network(), []

    def clip(*_: Any) -> Tensor:
        seen.append(denoiser.network.conv_out.bias.grad.clone())
        return torch.zeros(())

    nothing = SimpleNamespace(apply=lambda *_: None, step=lambda *_: None, zero_grad=lambda: None)
    x0 = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    pace = SimpleNamespace(u=torch.linspace(0.05, 0.95, 6), correction=torch.full((6,), correction))
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
            draw=lambda *_: pace,
            observe=lambda _: None,
            before_update=lambda: None,
            after_update=lambda _: {},
        ),
        batches=SimpleNamespace(at=lambda *_: x0),
        encode=lambda batch: (batch, Condition(torch.arange(6) % 3)),
        synchronised=lambda last: nullcontext(),
        objective=Objective(PROCESS, named.weighting("min-snr")),
        denoiser=denoiser,
        seed=0,
        accumulate=1,
        clip=None,
        learning_rate=nothing,
        optimizer=nothing,
        ema=nothing,
    )
    train_step(training, 0)  # type: ignore[arg-type]
    return seen[0]


def test_the_samplers_correction_does_not_reach_the_variance() -> None:
    once, thrice = stepped(1.0), stepped(3.0)
    torch.testing.assert_close(thrice[:2], 3 * once[:2])
    assert torch.equal(thrice[2:], once[2:])
    assert (once[2:].abs() > 0).all()

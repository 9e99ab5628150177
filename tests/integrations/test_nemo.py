"""NeMo Automodel's pipeline with a pacer: its step, its weighting, our times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from protocols import Tiny, batch
from trainer_protocols import FlowMatchingPipeline

import stepwell
from stepwell.core.errors import InvalidParameter
from stepwell.integrations import nemo


def trained(pipeline: FlowMatchingPipeline, pacer: stepwell.Pacer | None, steps: int = 12) -> list[float]:
    torch.manual_seed(0)
    network, losses = Tiny(), []
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    if pacer is not None:
        nemo.pace(pipeline, pacer.attach(optimizer))
    for number in range(steps):
        _, loss, _, _ = pipeline.step(network, {"image_latents": batch(number)})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_it_trains_where_the_pacer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = FlowMatchingPipeline()
    sampler = stepwell.sampler("auto", "flow", unbiased=False)
    pacer = stepwell.Pacer(sampler, "flow", host_weighting=nemo.weighting_of(pipeline))
    drawn: list[Any] = []
    own = pacer.draw
    monkeypatch.setattr(
        pacer, "draw", lambda *args, **kwargs: drawn.append(own(*args, **kwargs)) or drawn[-1]
    )
    paced, sigmas = trained(pipeline, pacer), iter([pace.sigma for pace in drawn])
    monkeypatch.setattr(
        FlowMatchingPipeline,
        "sample_timesteps",
        lambda *args: ((sigma := next(sigmas)), sigma * 1000, "fed"),
    )
    assert trained(FlowMatchingPipeline(), None) == paced
    assert pacer.state_dict()["counter"]["step"] == 12


def test_its_results_have_both_weights() -> None:
    pipeline = FlowMatchingPipeline()
    pacer = stepwell.Pacer(
        stepwell.sampler("logit-normal", "flow", unbiased=True),
        "flow",
        host_weighting=nemo.weighting_of(pipeline),
    )
    nemo.pace(pipeline, pacer)
    sigma, timesteps, name = pipeline.sample_timesteps(8)
    assert name == "stepwell"
    assert torch.equal(timesteps, 1000 * sigma)
    prediction, target = batch(1), batch(2)
    weighted, mean, plain, mean_plain, weight, _ = pipeline.compute_loss(prediction, target, sigma)
    corrections = stepwell.sampler("logit-normal", "flow").density(sigma).reciprocal()
    assert torch.allclose(weight.flatten(), (1 + 3 * sigma) * corrections, rtol=1e-3)
    assert torch.allclose(weighted, plain * weight)
    assert mean == weighted.mean()
    assert mean_plain == plain.mean()
    # A loss that no draw belongs to is the pipeline's own.
    assert torch.equal(pipeline.compute_loss(prediction, target, sigma)[4].flatten(), 1 + 3 * sigma)


@pytest.mark.parametrize("weighted", [True, False])
def test_the_weighting_is_asked_of_the_pipeline(weighted: bool) -> None:
    process, u = stepwell.process("flow", shift=2.0), torch.linspace(0.1, 0.9, 5)
    found = nemo.weighting_of(FlowMatchingPipeline(use_loss_weighting=weighted))(process, u)
    assert torch.allclose(found, 1 + 3 * process.scales(u)[1] if weighted else torch.ones(5))


def test_other_processes_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="for flow matching, and the Pacer was made for linear"):
        nemo.pace(FlowMatchingPipeline(), stepwell.Pacer("uniform", "linear"))

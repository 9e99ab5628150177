"""DDIM and DDPM are diffusers' own pipelines, bit for bit, where they do the same."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMPipeline, DDPMPipeline

import stepwell
from stepwell.core.tick import stream_key
from stepwell.generate.diffusers_solvers import make_scheduler
from stepwell.generate.images import Request, generate
from stepwell.models.denoiser import Denoiser
from stepwell.models.registry import build_model

COUNT = 3


@pytest.fixture(scope="module")
def network() -> Denoiser:
    torch.manual_seed(0)
    return build_model("micro", channels=3, image_size=8).eval()


def theirs(kind: Any, network: Denoiser, scheduler: Any, output: str, **options: Any) -> Any:
    pipeline = kind(unet=network.network, scheduler=scheduler)
    pipeline.set_progress_bar_config(disable=True)
    generators = [torch.Generator().manual_seed(stream_key(5, "image", index)) for index in range(COUNT)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline(batch_size=COUNT, generator=generators, output_type=output, **options).images


def as_pipelines_have_it(x: torch.Tensor) -> torch.Tensor:
    return (x / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)


@pytest.mark.parametrize("prediction", ["eps", "v", "x0"])
@pytest.mark.parametrize("eta", [0.0, 0.7])
def test_ddim(network: Denoiser, eta: float, prediction: str) -> None:
    process = stepwell.process("cosine", timesteps=60, prediction=prediction)
    request = Request(COUNT, (3, 8, 8), "ddim", steps=10, seed=5, eta=eta)
    scheduler = make_scheduler(process, "ddim")
    (floats,) = generate(network, process, request, decode=as_pipelines_have_it)
    options = {"num_inference_steps": 10, "eta": eta}
    assert np.array_equal(floats.numpy(), theirs(DDIMPipeline, network, scheduler, "np", **options))
    (pixels,) = generate(network, process, request)
    pictures = theirs(DDIMPipeline, network, scheduler, "pil", **options)
    assert np.array_equal(pixels.permute(0, 2, 3, 1), np.stack([np.asarray(one) for one in pictures]))


@pytest.mark.parametrize("prediction", ["eps", "v"])
def test_ddpm(network: Denoiser, prediction: str) -> None:
    process = stepwell.process("linear", timesteps=20, prediction=prediction)
    request = Request(COUNT, (3, 8, 8), "ddpm", steps=20, seed=5)
    scheduler = make_scheduler(process, "ddpm")
    (floats,) = generate(network, process, request, decode=as_pipelines_have_it)
    options = {"num_inference_steps": 20}
    assert np.array_equal(floats.numpy(), theirs(DDPMPipeline, network, scheduler, "np", **options))
    (pixels,) = generate(network, process, request)
    pictures = theirs(DDPMPipeline, network, scheduler, "pil", **options)
    assert np.array_equal(pixels.permute(0, 2, 3, 1), np.stack([np.asarray(one) for one in pictures]))

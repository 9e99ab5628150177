"""The score of a trained run: held-out losses, bits per dimension, distances and PSNR of generated images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stepwell.bound import VARIANCES
from stepwell.evaluate.bits import LEARNED, bits_per_dimension
from stepwell.evaluate.distances import Moments, frechet_distance
from stepwell.evaluate.extractors import Extractor, extractor
from stepwell.evaluate.kernel_distance import kernel_distance
from stepwell.generate.images import generate
from stepwell.generate.super_resolution import ReducedImages
from stepwell.recipes.experiment import Experiment
from stepwell.recipes.latents import psnr
from stepwell.recipes.training import evaluation_of
from stepwell.runs.metrics import FEATURES

FASHION16_SHAPE = (1, 16, 16)


@dataclass(frozen=True)
class Effort:
    """How many images and timesteps a score takes."""

    bits_images: int = 256
    bits_timesteps: int = 100
    generated: int = 1000
    steps: int | None = None
    """Denoising steps of generation; by default the recipe's."""
    reference: int = 12_000
    """Training images that generated ones are compared with, at most."""
    seed: int = 0


def score(run: Experiment, effort: Effort) -> dict[str, Any]:
    """Every metric of `runs/metrics.py` that this process and these data allow, by its key."""
    device = next(run.denoiser.parameters()).device
    values = evaluation_of(run, device)(run.denoiser)
    if run.data.latents is None and run.process.is_ddpm:
        values["bits_per_dimension"] = _bits(run, effort, device)
    if effort.generated:
        values |= _score_images(run, effort)
    return values


def _score_images(run: Experiment, effort: Effort) -> dict[str, Any]:
    """Distances of generated images on an extractor's features, and the PSNR of enlarged ones."""
    name, request = _extractor_name(run), run.request(effort.generated, batch=250, seed=effort.seed)
    if effort.steps is not None:
        request = replace(request, steps=min(effort.steps, run.process.timesteps or effort.steps))
    network, reduced = extractor(name) if name else None, request.low_resolution
    if network is None and reduced is None:
        return {}
    features: list[Tensor] = []
    ratios: list[tuple[int, float, float]] = []
    batches = generate(run.denoiser, run.process, request, run.decode)
    for numbers, images in zip(request.batches(), batches, strict=True):
        if network is not None:
            features.append(network(images))
        if isinstance(reduced, ReducedImages):
            truth, bilinear = reduced.original(numbers), reduced.bilinear(numbers)
            ratios.append((len(images), psnr(images.cpu(), truth), psnr(bilinear, truth)))
    made_by = f"{request.solver}, {request.steps} steps, guidance {request.guidance:g}"
    values: dict[str, Any] = {}
    if network is not None:
        distances = _distances(run, torch.cat(features), effort, network)
        values[f"{name}{FEATURES}"] = {"made_by": made_by, **distances}
    if ratios:
        own, plain = (sum(one[0] * one[place] for one in ratios) / request.count for place in (1, 2))
        values["super_resolution"] = {
            "made_by": made_by,
            "images": request.count,
            "psnr": own,
            "psnr_of_plain_enlargement": plain,
        }
    return values


def _extractor_name(run: Experiment) -> str:
    """The recipe's extractor; by default our own classifier, for images that look like its training data."""
    fits = run.data.latents is None and run.data.train.shape == FASHION16_SHAPE
    return run.recipe.extractor or ("fashion16" if fits else "")


def _bits(run: Experiment, effort: Effort, device: torch.device) -> dict[str, Any]:
    held_out = run.data.held_out
    rows = torch.arange(min(effort.bits_images, len(held_out)))
    x0 = held_out.examples(rows).to(device)
    condition = run.condition(held_out, rows, x0)
    variance = LEARNED if run.recipe.learned_variance else VARIANCES[0]
    bits = bits_per_dimension(
        run.denoiser, run.process, x0, condition, variance=variance, timesteps=effort.bits_timesteps
    )
    return {**bits._asdict(), "variance": variance}


def _distances(run: Experiment, generated: Tensor, effort: Effort, network: Extractor) -> dict[str, Any]:
    """Between features of generated and of training images; latents are decoded first."""
    real = torch.cat([network(batch) for batch in _training_images(run, effort.reference)])
    kernel = kernel_distance(generated, real)
    return {
        "extractor": network.identity,
        "generated": len(generated),
        "reference": len(real),
        "frechet_distance": frechet_distance(Moments().add(generated), Moments().add(real)),
        "kernel_distance": kernel.mean,
        "kernel_distance_standard_error": kernel.standard_error,
    }


def _training_images(run: Experiment, most: int) -> Iterator[Tensor]:
    """uint8 batches of training images: all of them, or a fixed pseudo-random choice."""
    source = run.data.train
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))
    for rows in order[:most].sort().values.split(500):
        yield run.decode(source.examples(rows))

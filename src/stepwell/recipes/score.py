"""How good a trained run is: held-out losses, bits per dimension, distances of generated images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stepwell.evaluate.bits import bits_per_dimension
from stepwell.evaluate.distances import Moments, frechet_distance, kernel_distance
from stepwell.evaluate.extractors import Extractor, extractor
from stepwell.generate.images import Request, generate
from stepwell.generate.super_resolution import GroundTruth
from stepwell.recipes.experiment import Experiment
from stepwell.recipes.latents import psnr
from stepwell.recipes.training import evaluation_of

FASHION16_SHAPE = (1, 16, 16)


@dataclass(frozen=True)
class Effort:
    """How much to spend on a score."""

    bits_images: int = 256
    bits_timesteps: int = 100
    generated: int = 1000
    steps: int | None = None
    """Of generation; by default as the recipe says."""
    reference: int = 12_000
    """Training images that generated ones are compared with, at most."""
    seed: int = 0


def score(made: Experiment, effort: Effort) -> dict[str, Any]:
    """Every number that has a meaning for this process and these data."""
    device = next(made.denoiser.parameters()).device
    found = evaluation_of(made, device)(made.denoiser)
    if made.data.latents is None and made.process.is_ddpm:
        found["bits_per_dimension"] = _bits(made, effort, device)
    if effort.generated:
        found |= _of_images(made, effort)
    return found


def _of_images(made: Experiment, effort: Effort) -> dict[str, Any]:
    """What generated images say: distances on features, and PSNR of enlarged ones to the ground truth."""
    name, request = features_of(made), _request(made, effort)
    features = extractor(name) if name else None
    if features is None and request.ground_truth is None:
        return {}
    seen: list[Tensor] = []
    near: list[tuple[int, float, float]] = []
    batches = generate(made.denoiser, made.process, request, made.decode)
    for numbers, images in zip(request.batches(), batches, strict=True):
        if features is not None:
            seen.append(features(images))
        if request.ground_truth is not None:
            near.append(_nearness(images, request.ground_truth, numbers))
    found: dict[str, Any] = {}
    if features is not None:
        found[f"{name}_features"] = _distances(made, torch.cat(seen), effort, features)
    if near:
        ours, plain = (sum(one[0] * one[place] for one in near) / request.count for place in (1, 2))
        found["super_resolution"] = {
            "images": request.count,
            "psnr": ours,
            "psnr_of_plain_enlargement": plain,
        }
    return found


def _nearness(images: Tensor, ground_truth: GroundTruth, numbers: range) -> tuple[int, float, float]:
    """How many images, and the peak signal to noise of them and of plain enlargement in their place."""
    wanted = ground_truth.pixels(numbers)
    return len(images), psnr(images.cpu(), wanted), psnr(ground_truth.bilinear(numbers), wanted)


def features_of(made: Experiment) -> str:
    """The features that the recipe names; our own classifier's for images that it knows."""
    fits = made.data.latents is None and made.data.train.shape == FASHION16_SHAPE
    return made.recipe.extractor or ("fashion16" if fits else "")


def _bits(made: Experiment, effort: Effort, device: torch.device) -> dict[str, float]:
    held_out = made.data.held_out
    chosen = torch.arange(min(effort.bits_images, len(held_out)))
    labels = (
        held_out.labels[chosen].to(device) if made.recipe.labels and held_out.labels is not None else None
    )
    x0 = held_out.examples(chosen).to(device)
    bits = bits_per_dimension(
        made.denoiser,
        made.process,
        x0,
        made.conditioning.of(x0, labels),
        timesteps=effort.bits_timesteps,
    )
    return bits._asdict()


def _request(made: Experiment, effort: Effort) -> Request:
    request = made.request(effort.generated, batch=250, seed=effort.seed)
    if effort.steps is not None:
        request = replace(request, steps=min(effort.steps, made.process.timesteps or effort.steps))
    return request


def _distances(made: Experiment, ours: Tensor, effort: Effort, features: Extractor) -> dict[str, Any]:
    """Between features of generated images and those trained on; of latents, as their decoder makes them."""
    real = torch.cat([features(batch) for batch in _real(made, effort.reference)])
    kernel = kernel_distance(ours, real)
    return {
        "extractor": features.identity,
        "generated": len(ours),
        "reference": len(real),
        "frechet_distance": frechet_distance(Moments().add(ours), Moments().add(real)),
        "kernel_distance": kernel.mean,
        "kernel_distance_standard_error": kernel.standard_error,
    }


def _real(made: Experiment, most: int) -> Iterator[Tensor]:
    """uint8 batches of training images: all of them, or a fixed pseudo-random choice."""
    source = made.data.train
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))
    for rows in order[:most].sort().values.split(500):
        yield made.decode(source.examples(rows))

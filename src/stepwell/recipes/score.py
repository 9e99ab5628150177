"""How good a trained run is: held-out losses, bits per dimension, distances of generated images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stepwell.evaluate.bits import bits_per_dimension
from stepwell.evaluate.extractors import Extractor, extractor
from stepwell.evaluate.frechet import Moments, frechet_distance, kernel_distance
from stepwell.generate.images import generate
from stepwell.models.denoiser import Condition
from stepwell.processes.discrete import DiscreteProcess
from stepwell.recipes.build import Experiment, evaluation_of

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
    if made.data.latents is None and isinstance(made.process, DiscreteProcess):
        found["bits_per_dimension"] = _bits(made, effort, device)
    features = features_of(made)
    if features and effort.generated:
        found[f"{features}_features"] = _distances(made, effort, extractor(features))
    return found


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
    bits = bits_per_dimension(
        made.denoiser,
        made.process,
        held_out.examples(chosen).to(device),
        Condition(labels),
        timesteps=effort.bits_timesteps,
    )
    return bits._asdict()


def _distances(made: Experiment, effort: Effort, features: Extractor) -> dict[str, Any]:
    """Between generated images and those trained on; of latents, as their autoencoder decodes them."""
    request = made.request(effort.generated, batch=250, seed=effort.seed)
    if effort.steps is not None:
        request = replace(request, steps=min(effort.steps, made.process.timesteps or effort.steps))
    images = generate(made.denoiser, made.process, request, made.decode)
    ours = torch.cat([features(batch) for batch in images])
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

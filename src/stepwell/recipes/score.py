"""How good a trained run is: held-out losses, bits per dimension, distances of generated images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stepwell.data.source import ExampleSource, to_unit
from stepwell.evaluate.bits import bits_per_dimension
from stepwell.evaluate.features import load_features
from stepwell.evaluate.frechet import Moments, frechet_distance, kernel_distance
from stepwell.generate.images import generate
from stepwell.models.denoiser import Condition
from stepwell.processes.discrete import DiscreteProcess
from stepwell.recipes.build import Experiment, evaluation_of

FEATURES_SHAPE = (1, 16, 16)


@dataclass(frozen=True)
class Effort:
    """How much to spend on a score."""

    bits_images: int = 256
    bits_timesteps: int = 100
    generated: int = 1000
    steps: int | None = None
    """Of generation; by default as the recipe says."""
    seed: int = 0


def score(made: Experiment, effort: Effort) -> dict[str, Any]:
    """Every number that has a meaning for this process and these data."""
    device = next(made.denoiser.parameters()).device
    found = evaluation_of(made, device)(made.denoiser)
    if isinstance(made.process, DiscreteProcess) and made.data.latents is None:
        found["bits_per_dimension"] = _bits(made, effort, device)
        if made.data.train.shape == FEATURES_SHAPE and effort.generated:
            found["fashion16_features"] = _distances(made, effort)
    return found


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


def _distances(made: Experiment, effort: Effort) -> dict[str, float]:
    """On the features of a small classifier: comparable between our runs, and not FID."""
    request = made.request(effort.generated, batch=250, seed=effort.seed)
    if effort.steps is not None:
        request = replace(request, steps=min(effort.steps, made.process.timesteps or effort.steps))
    network = load_features()
    made_features = torch.cat(
        [network(to_unit(batch)) for batch in generate(made.denoiser, made.process, request, made.decode)]
    )
    real = _features(network, made.data.train)
    ours, theirs = Moments(), Moments()
    ours.add(made_features)
    theirs.add(real)
    kernel = kernel_distance(made_features, real)
    return {
        "generated": effort.generated,
        "frechet_distance": frechet_distance(ours, theirs),
        "kernel_distance": kernel.mean,
        "kernel_distance_standard_error": kernel.standard_error,
    }


@torch.no_grad()
def _features(network: torch.nn.Module, source: ExampleSource) -> Tensor:
    parts = torch.arange(len(source)).split(1000)
    return torch.cat([network(source.examples(part)) for part in parts])

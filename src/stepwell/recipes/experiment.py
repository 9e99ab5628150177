"""An experiment: a plan with its data and network, which training, generation and evaluation start from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from stepwell.core.errors import StepwellError
from stepwell.core.process import NoiseProcess
from stepwell.core.tick import stream_key
from stepwell.data.load import load as load_data
from stepwell.data.source import DataSet, ExampleSource, to_pixels
from stepwell.generate.images import Decode, Request
from stepwell.generate.super_resolution import ReducedImages
from stepwell.models import lora
from stepwell.models.denoiser import Condition, Conditioning, Denoiser
from stepwell.models.registry import build_model
from stepwell.recipes.captions import encoder_of, tell_captions, text_shape
from stepwell.recipes.latents import decoder_of
from stepwell.recipes.load import saved_plan
from stepwell.recipes.plan import Plan
from stepwell.recipes.saved_network import config_of
from stepwell.recipes.schema import Recipe
from stepwell.recipes.start import Start, other_tensors, read_start, require_fit
from stepwell.train import checkpoint
from stepwell.train.ema import BadAverages, averaged_weights

Shape = tuple[int, int, int]
"""Channels, height, width."""
LATENT_CLIP = 10.0
"""Standard deviations, which no latent exceeds. Without a limit, eps predictions divided by the vanishing
signal at the end of cosine become latents in the thousands."""


@dataclass(frozen=True)
class Experiment:
    """A plan with its data and network."""

    plan: Plan
    data: DataSet
    denoiser: Denoiser
    decode: Decode = to_pixels
    """From the network's examples to uint8 images."""
    started_from: str = ""
    """Whose weights the network started with, in words; empty if they follow the seed or a checkpoint."""

    @property
    def recipe(self) -> Recipe:
        """The plan's settings."""
        return self.plan.recipe

    @property
    def process(self) -> NoiseProcess:
        """The noise process."""
        return self.plan.process

    @property
    def conditioning(self) -> Conditioning:
        """The network's inputs beside the noisy example and the time."""
        return Conditioning(self.recipe.super_resolution)

    def condition(self, source: ExampleSource, rows: Tensor, x0: Tensor) -> Condition:
        """The condition of some rows [B] of a source, whose examples are x0 [B, C, H, W]."""
        labels = None if source.labels is None else source.labels[rows].to(x0.device)
        return self.conditioning.of(x0, labels)

    def request(self, count: int, *, batch: int = 64, seed: int = 0) -> Request:
        """Images as the recipe generates them: all classes, or the captions of held-out images, in turn."""
        recipe, reduced = self.recipe, None
        labels = tuple(range(self.data.train.classes))
        if recipe.captions and self.data.held_out.labels is not None:
            labels = tuple(self.data.held_out.labels.tolist())
        if recipe.super_resolution:
            reduced = ReducedImages(self.data.held_out, recipe.super_resolution)
        return Request(
            count,
            self.data.train.shape,
            solver=self.plan.solver,
            steps=min(recipe.sample_steps, self.process.timesteps or recipe.sample_steps),
            batch=batch,
            seed=seed,
            labels=labels,
            guidance=recipe.guidance,
            clip=1.0 if self.data.latents is None else LATENT_CLIP,
            low_resolution=reduced,
        )


def experiment(plan: Plan, *, start: bool = True) -> Experiment:
    """Load the data and build the network.

    `start` loads the weights that from= names; a run that has checkpoints does not need them any more.
    """
    data = data_of(plan.recipe)
    decode = decoder_of(data, plan.recipe.autoencoder)
    weights = read_start(plan.recipe.start) if start and plan.recipe.start else None
    encoder = encoder_of(plan.recipe) if plan.recipe.captions else None
    if encoder is not None:
        plan = plan.with_settings(text_digest=encoder.digest)
    network = network_of(plan, data, weights)
    if encoder is not None:
        notes = tell_captions(network, encoder, data.captions)
        data = replace(data, notes=(*data.notes, *notes))
    if weights is None:
        return Experiment(plan, data, network, decode)
    return Experiment(plan.with_settings(start_digest=weights.digest), data, network, decode, weights.title)


def data_of(recipe: Recipe) -> DataSet:
    """The training and held-out examples of a recipe."""
    return load_data(
        recipe.data,
        size=recipe.size,
        channels=recipe.channels,
        labels=recipe.labels,
        flips=recipe.flips,
        strict=recipe.strict,
        workers=recipe.workers,
        only_classes=recipe.only_classes,
        captions=recipe.captions,
    )


def network_of(plan: Plan, data: DataSet, start: Start | None = None) -> Denoiser:
    """The network for some data, initialised from the recipe's seed or with the weights of `start`."""
    recipe, shape = plan.recipe, data.train.shape
    if shape[1] != shape[2]:
        raise StepwellError(f"images must be square for now, not {shape[1]}x{shape[2]}: give size=N.")
    if recipe.super_resolution and data.latents is not None:
        raise StepwellError(
            f"super_resolution={recipe.super_resolution} reduces images, and {data.train.name} has latents: "
            "train on the images, or leave it out."
        )
    torch.manual_seed(stream_key(recipe.seed, "weights"))
    denoiser = untrained_network(recipe, shape, _classes(recipe, data))
    if start is not None:
        require_fit(start, plan, denoiser, shape)
        denoiser.load_state_dict(start.tensors)
    if recipe.lora:
        torch.manual_seed(stream_key(recipe.seed, "adapters"))
        lora.inject(denoiser.network, recipe.lora)
    return denoiser


def untrained_network(recipe: Recipe, shape: Shape, classes: int) -> Denoiser:
    """The network of a recipe for examples of a shape, without adapters."""
    return build_model(
        recipe.model,
        channels=shape[0],
        image_size=shape[1],
        classes=classes,
        label_dropout=recipe.label_dropout,
        extra_channels=Conditioning(recipe.super_resolution).extra_channels(shape),
        learned_variance=recipe.learned_variance,
        dropout=recipe.dropout,
        text=text_shape(recipe),
        config=config_of(recipe),
    )


def _classes(recipe: Recipe, data: DataSet) -> int:
    known = data.train.classes
    if recipe.captions or not recipe.labels:
        return known
    if recipe.classes is not None and recipe.classes < known:
        raise StepwellError(f"{data.train.name} has {known} classes: classes={recipe.classes} is too few.")
    return recipe.classes or known


def trained(run: Path, averaged: bool = True, step: int | None = None) -> Experiment:
    """The experiment of a run directory with its newest weights, or those after some step."""
    # Whole, whatever it was trained as.
    made = experiment(saved_plan(run).with_settings(sharding="none"), start=False)
    stored = _checkpoint(run, step)
    weights = stored.tree["model"]
    if averaged:
        try:
            weights = averaged_weights(weights, stored.tree["ema"])
        except BadAverages as error:
            raise StepwellError(f"{run} has a damaged checkpoint: {error}") from None
    if wrong := other_tensors(weights, made.denoiser.state_dict()):
        raise StepwellError(f"{run}: its checkpoint is of {wrong[0]}.")
    made.denoiser.load_state_dict(weights)
    made.denoiser.eval()
    return made


def _checkpoint(run: Path, step: int | None) -> checkpoint.Checkpoint:
    folder = run / "checkpoints"
    if step is not None:
        if step not in checkpoint.steps(folder):
            kept = ", ".join(map(str, sorted(checkpoint.steps(folder)))) or "none"
            raise StepwellError(f"{run} has no checkpoint of step {step}: those kept are {kept} (keep=N).")
        return checkpoint.load(checkpoint.file(folder, step))
    stored, damaged = checkpoint.newest(folder)
    if stored is None:
        why = f" {damaged[0]}" if damaged else ""
        raise StepwellError(f"{run} has no checkpoint that can be read.{why}")
    return stored

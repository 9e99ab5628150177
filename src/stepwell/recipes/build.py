"""From a checked recipe to everything a training run is made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from stepwell.catalogue import build as named
from stepwell.core.errors import StepwellError
from stepwell.core.process import NoiseProcess
from stepwell.core.ranks import worker_group
from stepwell.data.batches import Batches, Prefetched
from stepwell.data.load import load as load_data
from stepwell.data.source import DataSet, to_pixels
from stepwell.evaluate.bands import HeldOutLoss
from stepwell.generate.images import Decode, Request
from stepwell.generate.super_resolution import GroundTruth
from stepwell.models.denoiser import Conditioning, Denoiser
from stepwell.objective import Objective
from stepwell.pacer import Pacer
from stepwell.recipes.latents import decoder_of
from stepwell.recipes.load import check
from stepwell.recipes.method import resolve
from stepwell.recipes.network import network_of as network_of
from stepwell.recipes.schema import Recipe
from stepwell.recipes.start import read as read_start
from stepwell.runs.directory import RECIPE
from stepwell.train import checkpoint
from stepwell.train.duties import Plan
from stepwell.train.ema import Ema
from stepwell.train.learning_rate import Warmup
from stepwell.train.step import Training

LATENTS_WITHIN = 10.0
"""Deviations: no latent is that far out. Without a limit, eps predictions divided by the vanishing signal at
the end of cosine become latents in the thousands."""


@dataclass(frozen=True)
class Experiment:
    """A recipe with its data and network: what training, generation and evaluation start from."""

    recipe: Recipe
    data: DataSet
    objective: Objective
    denoiser: Denoiser
    decode: Decode = to_pixels
    """From what the network makes to uint8 images."""
    begun_from: str = ""
    """Whose weights the network has, in words; nothing if they follow the seed or a checkpoint."""

    @property
    def conditioning(self) -> Conditioning:
        """What the network is told of its examples beside time."""
        return Conditioning(self.recipe.super_resolution)

    @property
    def process(self) -> NoiseProcess:
        """The noise process."""
        return self.objective.process

    def request(self, count: int, *, batch: int = 64, seed: int = 0) -> Request:
        """Images as the recipe generates them, all classes in turn."""
        recipe = self.recipe
        return Request(
            count,
            self.data.train.shape,
            solver=self.process.solver(recipe.solver),
            steps=min(recipe.sample_steps, self.process.timesteps or recipe.sample_steps),
            batch=batch,
            seed=seed,
            labels=tuple(range(self.denoiser.classes)),
            guidance=recipe.guidance,
            clip=1.0 if self.data.latents is None else LATENTS_WITHIN,
            ground_truth=GroundTruth(self.data.held_out, self.conditioning)
            if recipe.super_resolution
            else None,
        )


def data_of(recipe: Recipe) -> DataSet:
    """What it trains on and what is held out."""
    return load_data(
        recipe.data,
        size=recipe.size,
        channels=recipe.channels,
        labels=recipe.labels,
        flips=recipe.flips,
        strict=recipe.strict,
        workers=recipe.workers,
        only_classes=recipe.only_classes,
    )


def experiment(recipe: Recipe, *, begin: bool = True) -> Experiment:
    """Load the data, build process, weighting and network.

    `begin` gives the network the weights that the recipe starts from, if it says so. A run that has
    checkpoints needs them no more.
    """
    data = data_of(recipe)
    decode = decoder_of(data, recipe.autoencoder)
    start = read_start(recipe.start) if begin and recipe.start else None
    made = Experiment(recipe, data, objective_of(recipe), network_of(recipe, data, start), decode)
    if start is None:
        return made
    return replace(made, recipe=replace(recipe, start_digest=start.digest), begun_from=start.title)


def objective_of(recipe: Recipe) -> Objective:
    """Process and weighting."""
    method = resolve(recipe.method)
    name, given = method.weighting
    return Objective(named.as_process(recipe.process), named.weighting(name, **given))


def on_cpu() -> bool:
    """Whether there is nothing faster here."""
    return not (torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available())


def training_of(made: Experiment, accelerator: Accelerator) -> Training:
    """Optimizer, EMA, sampler and pacer around the network, on the accelerator's device and ranks."""
    recipe, method = made.recipe, resolve(made.recipe.method)
    network: nn.Module = made.denoiser
    if recipe.channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    optimizer = kind(
        [parameter for parameter in network.parameters() if parameter.requires_grad],
        lr=recipe.lr,
        betas=(recipe.beta1, recipe.beta2),
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    prepared, optimizer = accelerator.prepare(network, optimizer)
    sampler = named.sampler(method.sampler[0], made.process, **method.sampler[1])
    bare = accelerator.unwrap_model(prepared)

    def loss_at(x0: Tensor, noise: Tensor, u: Tensor, condition: Any) -> Tensor:
        # The bare network: a probe on one rank must not start a collective of DDP.
        return made.objective(bare, x0, noise, u, condition).plain

    batches = Batches(made.data.train, recipe.batch, recipe.seed)
    pacer = Pacer(
        sampler,
        made.process,
        made.objective.weighting,
        loss_at=loss_at,
        optimizer=optimizer,
        network=bare,
        group=worker_group(),
    )
    return Training(
        accelerator=accelerator,
        denoiser=torch.compile(prepared) if recipe.compile else prepared,  # type: ignore[arg-type]
        objective=made.objective,
        pacer=pacer,
        batches=batches if made.data.train.in_memory else Prefetched(batches),
        optimizer=optimizer,
        warm_up=Warmup(recipe.lr, recipe.warm_up_steps),
        ema=Ema(bare.parameters(), recipe.ema, recipe.ema_kind),
        seed=recipe.seed,
        accumulate=recipe.accumulate,
        clip=recipe.clip,
        channels_last=recipe.channels_last,
        conditioning=made.conditioning,
    )


def plan_of(made: Experiment, world: int, inexact: bool) -> Plan:
    """How long, and how often what."""
    recipe = made.recipe
    return Plan(
        data_images=len(made.data.train),
        example_shape=made.data.train.shape,
        steps=recipe.steps,
        batch_images=recipe.batch * recipe.accumulate * world,
        seconds=recipe.seconds,
        record_every=recipe.record_every,
        evaluate_every=recipe.evaluate_every,
        checkpoint_every=recipe.checkpoint_every,
        keep=recipe.keep,
        inexact=inexact,
    )


def evaluation_of(made: Experiment, device: torch.device) -> Callable[[nn.Module], dict[str, Any]]:
    """The held-out losses of the recipe, as the loop records them."""
    held_out = made.data.held_out
    count = min(made.recipe.evaluate_images, len(held_out))
    # Every run of a workload must see the same held-out images, whatever its seed.
    chosen = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0))[:count]
    x0 = held_out.examples(chosen).to(device)
    labels = (
        held_out.labels[chosen].to(device) if made.recipe.labels and held_out.labels is not None else None
    )
    condition = made.conditioning.of(x0, labels)
    losses = HeldOutLoss(made.process, x0, condition, bands=made.recipe.bands, seed=0)

    def evaluate(network: nn.Module) -> dict[str, Any]:
        found = losses(network)
        objectives = {f"objective/{name}": value for name, value in found.objectives.items()}
        return {"bands": found.plain.tolist(), **objectives}

    return evaluate


def trained(path: Path, averaged: bool = True, step: int | None = None) -> Experiment:
    """The experiment of a run directory with its newest weights, or those after some step."""
    try:
        recipe = check(json.loads((path / RECIPE).read_text()), source=str(path / RECIPE))
    except FileNotFoundError:
        raise StepwellError(f"{path} is not a run: it has no {RECIPE}. Train one with out={path}.") from None
    except ValueError as error:
        raise StepwellError(f"{path / RECIPE} is not valid: {error}") from None
    made = experiment(recipe, begin=False)
    found = _checkpoint(path, step)
    made.denoiser.load_state_dict(found.tree["model"])
    if averaged:
        learned = [parameter for parameter in made.denoiser.parameters() if parameter.requires_grad]
        with torch.no_grad():
            for parameter, average in zip(learned, found.tree["ema"], strict=True):
                parameter.copy_(average)
    made.denoiser.eval()
    return made


def _checkpoint(path: Path, step: int | None) -> checkpoint.Checkpoint:
    folder = path / "checkpoints"
    if step is not None:
        if step not in checkpoint.steps(folder):
            kept = ", ".join(map(str, sorted(checkpoint.steps(folder)))) or "none"
            raise StepwellError(f"{path} has no checkpoint of step {step}: those kept are {kept} (keep=N).")
        return checkpoint.load(checkpoint.file(folder, step))
    found, wrong = checkpoint.newest(folder)
    if found is None:
        more = f" {wrong[0]}" if wrong else ""
        raise StepwellError(f"{path} has no checkpoint that can be read.{more}")
    return found

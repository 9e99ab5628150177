"""Which ways to start several processes the trainer can take."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from stepwell.core.density import Uniform
from stepwell.core.errors import StepwellError, Unsupported
from stepwell.generate.images import generate
from stepwell.generate.write import sheet_of
from stepwell.recipes.build import Experiment, evaluation_of, experiment, on_cpu, plan_of, training_of
from stepwell.recipes.method import resolve
from stepwell.recipes.schema import MAY_CHANGE, Recipe
from stepwell.runs.directory import ENVIRONMENT, RECIPE, Run, RunError, environment
from stepwell.runs.io import write_json
from stepwell.train import checkpoint
from stepwell.train.duties import Hooks, Position, finished
from stepwell.train.loop import train
from stepwell.train.step import Training

_SHARDING = {
    "FSDP": "ACCELERATE_USE_FSDP",
    "DeepSpeed": "ACCELERATE_USE_DEEPSPEED",
    "Megatron-LM": "ACCELERATE_USE_MEGATRON_LM",
}
"""What splits a network over ranks, and the variable by which accelerate's launcher asks for it."""


def require_whole_networks() -> None:
    """Refuse launches that split the network: the average, checkpoints and evaluation need all of it.

    Left alone, a run under FSDP2 would end at its first evaluation: rank 0 cannot put the averaged weights in
    place, and the others report a lost connection. Before accelerate is asked, which fails here without GPUs.
    """
    for name, variable in _SHARDING.items():
        if os.environ.get(variable, "").lower() == "true":
            raise Unsupported(
                f"this launch asks for {name}, and `stepwell train` keeps the whole network on every GPU "
                "(DDP): launch without it (accelerate: --multi_gpu; torchrun as it is), with a smaller batch "
                "and more accumulate if memory is short. A network that fits no GPU trains in a loop of your "
                "own with stepwell.Pacer, which supports fully_shard: see docs/scale.md."
            )


Say = Callable[[str], None]
Progress = Callable[[int, dict[str, Any]], None]


def run_recipe(
    recipe: Recipe, *, inexact: bool = False, say: Say = print, progress: Progress = lambda step, values: None
) -> Position:
    """Train from nothing or from the newest checkpoint of recipe.out, then generate samples."""
    require_whole_networks()
    out = Path(recipe.out)
    trackers = None if recipe.tracker == "none" else recipe.tracker
    accelerator = Accelerator(
        cpu=on_cpu(),
        mixed_precision=recipe.precision,
        log_with=trackers,
        project_dir=str(out),
    )
    leads = accelerator.is_main_process
    recipe = _with_known_start(recipe, out)
    made = experiment(recipe, begin=not any(checkpoint.steps(out / "checkpoints")))
    recipe = made.recipe
    run = _open(out, recipe) if leads else None
    try:
        training = training_of(made, accelerator)
        if run is not None:
            _describe(run, training)
        if trackers:
            accelerator.init_trackers("stepwell", config={k: str(v) for k, v in asdict(recipe).items()})
        quiet: Say = say if leads else lambda text: None
        for note in (*made.data.notes, *_beginning(made)):
            quiet(note)
        hooks = Hooks(
            evaluate=evaluation_of(made, accelerator.device),
            progress=progress if leads else lambda step, values: None,
            track=lambda values, step: accelerator.log(values, step=step) if trackers else None,
            say=quiet,
        )
        plan = plan_of(made, accelerator.num_processes, inexact)
        at = train(training, run, plan, hooks)
        if run is not None and recipe.samples and finished(at, plan):
            _sample(made, training, run, at, quiet)
        if trackers:
            accelerator.end_training()
        return at
    finally:
        if run is not None:
            run.close()


def _with_known_start(recipe: Recipe, out: Path) -> Recipe:
    """With the digest that the run was begun with: it goes on without the weights themselves."""
    if not recipe.start or recipe.start_digest or not (out / RECIPE).is_file():
        return recipe
    try:
        known = json.loads((out / RECIPE).read_text(encoding="utf-8"))
    except ValueError:
        return recipe
    return replace(recipe, start_digest=str(known.get("start_digest", "")))


def _beginning(made: Experiment) -> Iterator[str]:
    if made.begun_from:
        yield f"starts from {made.begun_from} (digest {made.recipe.start_digest})"
    if made.recipe.lora:
        sizes = [(p.numel(), p.requires_grad) for p in made.denoiser.parameters()]
        learned = sum(size for size, learns in sizes if learns)
        frozen = sum(size for size, learns in sizes if not learns)
        yield f"adapters of rank {made.recipe.lora}: {learned:,} parameters learn, {frozen:,} are frozen"
    drawn = resolve(made.recipe.method).sampler[0]
    if drawn == "uniform" and not isinstance(made.process.reference, Uniform):
        yield f"{made.recipe.process} has its own draws, and uniform is not them: see method=reference"


def _open(out: Path, recipe: Recipe) -> Run:
    run = Run(out)
    try:
        run.open(asdict(recipe), MAY_CHANGE, asdict(Recipe()))
    except RunError as error:
        run.close()
        raise StepwellError(str(error)) from error
    return run


def _describe(run: Run, training: Training) -> None:
    network = training.network
    more = {
        "device": str(training.accelerator.device),
        "threads": torch.get_num_threads(),
        "processes": training.accelerator.num_processes,
        "parameters": sum(p.numel() for p in network.parameters()),
        "parameters_that_learn": sum(p.numel() for p in network.parameters() if p.requires_grad),
    }
    write_json(run.path / ENVIRONMENT, environment(**more))


def _sample(made: Experiment, training: Training, run: Run, at: Position, say: Say) -> None:
    """A sheet of the averaged weights' images; labels in turn."""
    path = run.samples / f"step-{at.step:09d}.png"
    if path.exists():
        return
    network, request = training.network, made.request(made.recipe.samples)
    if request.solver != made.recipe.solver:
        say(f"{request.solver} makes the samples: {made.recipe.solver} is of discrete processes.")
    network.eval()
    with training.ema.in_place():
        images = torch.cat(list(generate(network, made.process, request, made.decode)))
    network.train()
    sheet_of(images, request.ground_truth).save(path)


def with_out(recipe: Recipe, workload: str) -> Recipe:
    """The recipe with a run directory of its own, if none was named."""
    if recipe.out:
        return recipe
    name = f"{Path(workload).stem}-{recipe.method}-{recipe.seed}"
    if recipe.start:
        name += f"-from-{Path(recipe.start).stem}"
    safe = "".join(letter if letter.isalnum() or letter in "-_.+" else "-" for letter in name)
    return replace(recipe, out=f"runs/{safe}")

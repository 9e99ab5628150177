"""Run a plan: the one function behind `stepwell train`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from stepwell.core.density import Uniform
from stepwell.core.errors import StepwellError, Unsupported
from stepwell.core.ranks import neighbours_watched
from stepwell.generate.images import generate
from stepwell.generate.super_resolution import sample_sheet
from stepwell.recipes.experiment import Experiment, experiment
from stepwell.recipes.load import saved_recipe
from stepwell.recipes.plan import Plan
from stepwell.recipes.schema import MAY_CHANGE, Recipe
from stepwell.recipes.training import (
    accelerator_of,
    evaluation_of,
    loop_settings,
    measurement_of,
    training_of,
)
from stepwell.runs.directory import ENVIRONMENT, Run, RunError, environment, safe_name
from stepwell.runs.io import write_json
from stepwell.train import checkpoint
from stepwell.train.loop import train
from stepwell.train.recorder import Hooks, Position
from stepwell.train.step import Training

Say = Callable[[str], None]
Progress = Callable[[int, dict[str, Any]], None]

_SHARDING = {
    "FSDP": "ACCELERATE_USE_FSDP",
    "DeepSpeed": "ACCELERATE_USE_DEEPSPEED",
    "Megatron-LM": "ACCELERATE_USE_MEGATRON_LM",
}
"""What splits a network over ranks, and the variable by which accelerate's launcher asks for it."""


@neighbours_watched()
def run_plan(
    plan: Plan, *, inexact: bool = False, say: Say = print, progress: Progress = lambda step, values: None
) -> Position:
    """Train from the start or from the newest checkpoint of out=, then generate samples."""
    require_whole_networks()
    out = Path(plan.recipe.out)
    trackers = None if plan.recipe.tracker == "none" else plan.recipe.tracker
    accelerator = accelerator_of(plan.recipe, log_with=trackers, project_dir=str(out))
    made = experiment(_with_known_start(plan, out), start=not any(checkpoint.steps(out / "checkpoints")))
    recipe, leads = made.recipe, accelerator.is_main_process
    run = _open(out, recipe) if leads else None
    try:
        training = training_of(made, accelerator)
        if run is not None:
            _describe(run, training)
        if trackers:
            accelerator.init_trackers("stepwell", config={k: str(v) for k, v in recipe.values().items()})
        quiet: Say = say if leads else lambda text: None
        for note in (*made.data.notes, *_notes(made)):
            quiet(note)
        hooks = Hooks(
            evaluate=evaluation_of(made, accelerator.device),
            measure=measurement_of(made, training),
            progress=progress if leads else lambda step, values: None,
            track=lambda values, step: accelerator.log(values, step=step) if trackers else None,
            say=quiet,
        )
        at = train(training, run, loop_settings(made, accelerator.num_processes, inexact), hooks)
        if at.finished(recipe.limit):
            quiet(f"Forecast: {training.pacer.forecast()}.")
        if run is not None and recipe.samples and at.finished(recipe.limit):
            _sample(made, training, run, at, quiet)
        if trackers:
            accelerator.end_training()
        return at
    finally:
        if run is not None:
            run.close()


def require_whole_networks() -> None:
    """Refuse launches that split the network: EMA, checkpoints and evaluation need all of it.

    Left alone, a run under FSDP2 would end at its first evaluation: rank 0 cannot put the EMA weights in
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


def _with_known_start(plan: Plan, out: Path) -> Plan:
    """With the digest that the run started with: a resumed run does not need the weights themselves."""
    if not plan.recipe.start or plan.recipe.start_digest:
        return plan
    saved = saved_recipe(out)
    return plan if saved is None else plan.with_settings(start_digest=saved.start_digest)


def _notes(made: Experiment) -> Iterator[str]:
    """What a user should know before the first step."""
    recipe = made.recipe
    if made.started_from:
        yield f"starts from {made.started_from} (digest {recipe.start_digest})"
    if recipe.lora:
        sizes = [(p.numel(), p.requires_grad) for p in made.denoiser.parameters()]
        learned = sum(size for size, learns in sizes if learns)
        frozen = sum(size for size, learns in sizes if not learns)
        yield f"LoRA adapters of rank {recipe.lora}: {learned:,} parameters train, {frozen:,} are frozen"
    if made.plan.method.sampler.name == "uniform" and not isinstance(made.process.reference, Uniform):
        yield f"{recipe.process} draws from its own density, which is not uniform: see method=reference"


def _open(out: Path, recipe: Recipe) -> Run:
    run = Run(out)
    try:
        # A decay was planned for a number of steps: with another one, the rate would jump.
        may_change = MAY_CHANGE - {"steps"} if recipe.decays else MAY_CHANGE
        run.open(recipe.values(), may_change, Recipe().values())
    except RunError as error:
        run.close()
        raise StepwellError(str(error)) from error
    return run


def _describe(run: Run, training: Training) -> None:
    parameters = list(training.network.parameters())
    facts = environment(
        device=str(training.accelerator.device),
        threads=torch.get_num_threads(),
        processes=training.accelerator.num_processes,
        parameters=sum(p.numel() for p in parameters),
        parameters_that_learn=sum(p.numel() for p in parameters if p.requires_grad),
    )
    write_json(run.path / ENVIRONMENT, facts)


def _sample(made: Experiment, training: Training, run: Run, at: Position, say: Say) -> None:
    """A sheet of images of the EMA weights, all classes in turn."""
    path = run.samples / f"step-{at.step:09d}.png"
    if path.exists():
        return
    network, request = training.network, made.request(made.recipe.samples)
    if request.solver != made.recipe.solver:
        say(f"samples are generated by {request.solver}: {made.recipe.solver} needs discrete timesteps.")
    network.eval()
    with training.ema.in_place():
        images = torch.cat(list(generate(network, made.process, request, made.decode)))
    network.train()
    sample_sheet(images, request.ground_truth).save(path)


def with_out(plan: Plan, workload: str) -> Plan:
    """The plan with a run directory of its own, if none was named."""
    recipe = plan.recipe
    if recipe.out:
        return plan
    name = f"{Path(workload).stem}-{recipe.method}-{recipe.seed}"
    if recipe.start:
        name += f"-from-{Path(recipe.start).stem}"
    return plan.with_settings(out=f"runs/{safe_name(name)}")

"""Run a plan: the one function behind `stepwell train`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stepwell.core.errors import StepwellError, Unsupported
from stepwell.core.memory import memory_watched
from stepwell.core.neighbours import neighbours_watched
from stepwell.core.ranks import of_every_rank
from stepwell.core.reading import Unreadable, place
from stepwell.generate.images import generate
from stepwell.generate.sheets import as_tensor
from stepwell.generate.super_resolution import sample_sheet
from stepwell.recipes.agreement import require_agreement
from stepwell.recipes.banner import banner, notes
from stepwell.recipes.experiment import Experiment, experiment
from stepwell.recipes.load import recipe_in_checkpoint, saved_recipe
from stepwell.recipes.plan import Plan, resolve
from stepwell.recipes.saved_network import OF_NETWORK
from stepwell.recipes.schema import MAY_CHANGE, Recipe
from stepwell.recipes.training import (
    accelerator_of,
    evaluation_of,
    loop_settings,
    measurement_of,
    training_of,
)
from stepwell.runs.directory import ENVIRONMENT, Run, RunError, environment
from stepwell.runs.io import replacing, write_atomic, write_json
from stepwell.runs.lock import HEARTBEAT, STALE_AFTER
from stepwell.train import checkpoint
from stepwell.train.loop import train
from stepwell.train.recorder import Hooks, Position
from stepwell.train.step import Training
from stepwell.train.tracking import NO_TRACKER, Tracking

Say = Callable[[str], None]
Progress = Callable[[int, dict[str, Any]], None]

_SHARDING = {
    "FSDP": "ACCELERATE_USE_FSDP",
    "DeepSpeed": "ACCELERATE_USE_DEEPSPEED",
    "Megatron-LM": "ACCELERATE_USE_MEGATRON_LM",
}
"""What splits a network over ranks, and the variable by which accelerate's launcher asks for it."""


@neighbours_watched()
@memory_watched(
    "lower batch= (with more accumulate= the update stays the same), or take a smaller model= or size=; then "
    "run the same command again."
)
def run_plan(
    plan: Plan, *, inexact: bool = False, say: Say = print, progress: Progress = lambda step, values: None
) -> Position:
    """Train from the start or from the newest checkpoint of out=, with samples on the way and at the end."""
    refuse_other_sharding()
    out = Path(plan.recipe.out)
    trackers = None if plan.recipe.tracker == NO_TRACKER else plan.recipe.tracker
    accelerator = accelerator_of(plan.recipe, log_with=trackers, project_dir=str(out))
    made = experiment(_as_begun(plan, out), start=not any(checkpoint.steps(out / "checkpoints")))
    require_agreement(made)
    recipe, leads = made.recipe, accelerator.is_main_process
    run = _open(out, recipe) if leads else None
    try:
        training = training_of(made, accelerator)
        if run is not None:
            _describe(run, training, made.data.class_names)
        tracking = Tracking(accelerator, recipe.tracker, recipe.values())
        quiet: Say = say if leads else lambda text: None
        for note in (*banner(made, training, tracking.hint), *made.data.notes, *notes(made)):
            quiet(note)

        def sample(step: int) -> None:
            _sample(made, training, out, step, leads, tracking)

        hooks = Hooks(
            evaluate=evaluation_of(made, accelerator.device),
            measure=measurement_of(made, training),
            progress=progress if leads else lambda step, values: None,
            track=tracking.values,
            sample=sample,
            say=quiet,
        )
        at = train(training, run, loop_settings(made, accelerator.num_processes, inexact), hooks)
        if at.finished(recipe.limit):
            quiet(f"Forecast: {training.pacer.forecast()}.")
            with at.clock.paused():
                if recipe.samples and (leads or training.sharded):
                    sample(at.step)
        tracking.close()
        return at
    except RunError as error:
        raise StepwellError(str(error)) from error
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise
        raise StepwellError(
            f"training stopped: {error.filename or out}: {error.strerror or error}. Checkpoints are good: "
            "run the same command again when this is mended."
        ) from error
    finally:
        if run is not None:
            run.close()


def refuse_other_sharding() -> None:
    """Refuse launches that split the network in their own way: sharding=full is ours."""
    for name, variable in _SHARDING.items():
        if os.environ.get(variable, "").lower() == "true":
            raise Unsupported(
                f"this launch asks for {name}, and `stepwell train` splits networks itself: launch without "
                "it (accelerate: --multi_gpu; torchrun as it is), with sharding=full if the network does not "
                "fit on one GPU. See docs/scale.md."
            )


def _as_begun(plan: Plan, out: Path) -> Plan:
    """With what the run in `out` settled when it began, if there is one.

    The network and the digest of the weights it started from, which it does not need any more, and settings
    that followed its number of steps: it may be continued with more.
    """
    try:
        saved = saved_recipe(out)
    except Unreadable:
        # Opening the run tells that its recipe is damaged.
        return plan
    if saved is None:
        return plan
    if saved.network and saved.start == plan.recipe.start and not place(saved.start).exists():
        # What the folder said of its network, the run knows.
        told = {name: getattr(saved, name) for name in OF_NETWORK}
        plan = replace(resolve({**plan.recipe.values(), **told}), followed_from=plan.followed_from)
    settled = {name: getattr(saved, name) for name in plan.followed_from}
    if plan.recipe.start and not plan.recipe.start_digest:
        settled["start_digest"] = saved.start_digest
    return plan.with_settings(**settled)


def _open(out: Path, recipe: Recipe) -> Run:
    run = Run(out)
    try:
        # A decay was planned for a number of steps: with another one, the rate would jump.
        may_change = MAY_CHANGE - {"steps"} if recipe.decays else MAY_CHANGE
        copy = partial(recipe_in_checkpoint, out)
        run.open(recipe.values(), may_change, Recipe().values(), copy, _patience())
    except RunError as error:
        run.close()
        raise StepwellError(str(error)) from error
    return run


def _patience() -> float:
    """How long to wait for a run that another process holds.

    A job that a scheduler starts again on another machine comes before the lock of the one that died counts
    as stale.
    """
    return STALE_AFTER + 2 * HEARTBEAT if "SLURM_JOB_ID" in os.environ else 0.0


def _describe(run: Run, training: Training, class_names: Sequence[str]) -> None:
    parameters = list(training.network.parameters())
    facts = environment(
        device=str(training.accelerator.device),
        threads=torch.get_num_threads(),
        processes=training.accelerator.num_processes,
        parameters=sum(p.numel() for p in parameters),
        parameters_that_learn=sum(p.numel() for p in parameters if p.requires_grad),
        **({"class_names": list(class_names)} if class_names else {}),
    )
    write_json(run.path / ENVIRONMENT, facts)


def _sample(
    made: Experiment, training: Training, out: Path, step: int, leads: bool, tracking: Tracking
) -> None:
    """A sheet of images of the EMA weights, all classes in turn, from the same noise at every step.

    Of a sharded network all ranks make it.
    """
    path = sample_path(out, step)
    if all(of_every_rank(path.exists())) if training.sharded else path.exists():
        return
    network, request = training.network, made.request(made.recipe.samples)
    network.eval()
    with training.ema.in_place():
        images = torch.cat(list(generate(network, made.process, request, made.decode)))
    network.train()
    if not leads:
        return
    if made.data.captions:
        texts = [made.data.captions[label] for label in request.labels_of(range(request.count)) or []]
        write_atomic(path.with_name("captions.txt"), "\n".join([*texts, ""]).encode())
    picture = sample_sheet(images, request.low_resolution)
    with replacing(path) as temporary:
        picture.save(temporary, format="png")
    tracking.picture("samples", as_tensor(picture), step)


def sample_path(run: Path, step: int) -> Path:
    """Where the sample sheet of a step is."""
    return run / "samples" / f"step-{step:09d}.png"

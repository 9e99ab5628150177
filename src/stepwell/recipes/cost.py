"""What a recipe will cost: measured on a few steps, before anybody pays for all of them."""

from __future__ import annotations

import time
from dataclasses import replace

from accelerate import Accelerator

from stepwell.recipes.build import experiment, on_cpu, training_of
from stepwell.recipes.schema import Recipe
from stepwell.train.step import train_step

_MEASURED_STEPS = 5


def cost(recipe: Recipe) -> str:
    """Parameters, time, images and disk."""
    accelerator = Accelerator(cpu=on_cpu(), mixed_precision=recipe.precision)
    made = experiment(replace(recipe, tracker="none"))
    training = training_of(made, accelerator)
    train_step(training, 0)
    started = time.perf_counter()
    for step in range(1, 1 + _MEASURED_STEPS):
        train_step(training, step)
    each = (time.perf_counter() - started) / _MEASURED_STEPS
    parameters = sum(p.numel() for p in made.denoiser.parameters())
    images = recipe.steps * recipe.batch * recipe.accumulate * accelerator.num_processes
    total = recipe.seconds or recipe.steps * each
    epochs = images / len(made.data.train)
    return (
        f"\n{parameters:,} parameters; {len(made.data.train):,} training images of {made.data.train.shape}\n"
        f"{1 / each:.1f} steps a second here: about {_time(total)} of training, evaluation not counted\n"
        f"{images:,} images seen ({epochs:.1f} times the data)\n"
        f"{4 * parameters * 4 / 1e6:.0f} MB a checkpoint, {recipe.keep} kept"
    )


def _time(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"

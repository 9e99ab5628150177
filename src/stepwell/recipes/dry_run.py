"""`stepwell train --dry-run`: the cost of a plan, and its measured speed where the data are present."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from stepwell.data.load import kind_of
from stepwell.data.source import DataSet
from stepwell.recipes.cost import Cost, cost_of, text
from stepwell.recipes.experiment import Experiment, data_of, network_of
from stepwell.recipes.meta_flops import Uncountable
from stepwell.recipes.plan import Plan
from stepwell.recipes.start import read_start
from stepwell.recipes.training import accelerator_of, on_cpu, training_of
from stepwell.train.step import train_step

_STEPS, _LONGEST_SECONDS = 5, 20.0
_MOST_ON_CPU = 1e12
"""FLOPs of a step; a CPU would take minutes for more."""


def report(plan: Plan) -> str:
    """What the plan costs, and how fast it runs here if its data are present."""
    recipe, processes = plan.recipe, int(os.environ.get("WORLD_SIZE", "1"))
    start = read_start(recipe.start) if recipe.start else None
    title = f"starts from {start.title} ({len(start.tensors)} tensors, {start.digest})\n" if start else ""
    if kind_of(recipe.data) is None:
        note = f"data={recipe.data} are not here: nothing was measured, all of this is counted."
        return f"{title}{text(cost_of(plan, processes=processes))}\n{note}"
    data = data_of(recipe)
    if start is not None:
        # Weights that do not fit are refused now, not when training starts.
        network_of(plan, data, start)
    try:
        cost = cost_of(plan, data.train.shape, classes=data.train.classes, processes=processes)
    except Uncountable as error:
        return f"{title}{error}\n{measured(plan, data)}"
    counted = text(replace(cost, data_images=len(data.train)))
    if _too_much(cost):
        return f"{title}{counted}\nNot measured here: a step of this recipe is for a GPU."
    return f"{title}{counted}\n{measured(plan, data)}"


def _too_much(cost: Cost) -> bool:
    """Whether a step would take minutes, or more memory than is free."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return on_cpu() and (cost.step.total > _MOST_ON_CPU or 0 < free < cost.memory[1])


def measured(plan: Plan, data: DataSet) -> str:
    """The speed of a few steps on this machine, in words."""
    training = training_of(Experiment(plan, data, network_of(plan, data)), accelerator_of(plan.recipe))
    # Reading the loss waits for the device.
    float(train_step(training, 0).loss)
    started, done = time.perf_counter(), 0
    while done < _STEPS and time.perf_counter() - started < _LONGEST_SECONDS:
        done += 1
        float(train_step(training, done).loss)
    each = (time.perf_counter() - started) / done
    whole = duration(plan.recipe.seconds or plan.recipe.steps * each)
    return f"{1 / each:.3g} steps a second here: about {whole} of training, evaluation not counted"


def duration(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"

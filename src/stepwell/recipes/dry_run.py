"""A recipe that is not run: its cost on paper, and the speed of a few steps where the data are."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from accelerate import Accelerator

from stepwell.data.load import kind_of
from stepwell.data.source import DataSet
from stepwell.recipes.build import Experiment, data_of, network_of, objective_of, on_cpu, training_of
from stepwell.recipes.cost import Cost, cost_of, text
from stepwell.recipes.load import BadRecipe, load
from stepwell.recipes.meta_flops import Uncountable
from stepwell.recipes.schema import Recipe
from stepwell.recipes.start import read as read_start
from stepwell.train.step import train_step

TO_FILL_IN = "PATH"
"""What workloads say where their data are the user's."""
_STEPS, _LONGEST_SECONDS = 5, 20.0
_MOST_ON_CPU = 1e12
"""FLOPs of a step; a CPU would take minutes for more."""


def planned(workload: str, words: Sequence[str] = ()) -> Recipe:
    """A recipe as `load` makes it, except that data= need not be filled in yet."""
    try:
        return load(workload, words)
    except BadRecipe as first:
        try:
            found = load(workload, [*words, "data=later"])
        except BadRecipe:
            raise first from None
        return replace(found, data=TO_FILL_IN)


def present(data: str) -> bool:
    """Whether data can be looked at here."""
    return kind_of(data) is not None


def report(recipe: Recipe) -> str:
    """What is counted, what is measured, and how long it would take elsewhere."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    start = read_start(recipe.start) if recipe.start else None
    told = f"starts from {start.title} ({len(start.tensors)} tensors, {start.digest})\n" if start else ""
    if not present(recipe.data):
        note = f"data={recipe.data} are not here: nothing was measured, all of this is counted."
        return f"{told}{text(cost_of(recipe, processes=processes))}\n{note}"
    data = data_of(recipe)
    if start is not None:
        # Whether it fits is seen now, not when it is trained.
        network_of(recipe, data, start)
    return told + _cost(recipe, data, processes)


def _cost(recipe: Recipe, data: DataSet, processes: int) -> str:
    try:
        cost = cost_of(recipe, data.train.shape, classes=data.train.classes, processes=processes)
    except Uncountable as error:
        return f"{error}\n{measured(recipe, data)}"
    counted = text(replace(cost, data_images=len(data.train)))
    return f"{counted}\n{_too_much(cost) or measured(recipe, data)}"


def _too_much(cost: Cost) -> str:
    """Why nothing is measured here, if so."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    if on_cpu() and (cost.step.total > _MOST_ON_CPU or 0 < free < cost.memory[1]):
        return "Not measured here: a step of this recipe is for a GPU."
    return ""


def measured(recipe: Recipe, data: DataSet) -> str:
    """The speed of a few steps on this machine."""
    accelerator = Accelerator(cpu=on_cpu(), mixed_precision=recipe.precision)
    made = Experiment(replace(recipe, tracker="none"), data, objective_of(recipe), network_of(recipe, data))
    training = training_of(made, accelerator)
    # Reading the loss waits for the device.
    float(train_step(training, 0).loss)
    started, done = time.perf_counter(), 0
    while done < _STEPS and time.perf_counter() - started < _LONGEST_SECONDS:
        done += 1
        float(train_step(training, done).loss)
    each = (time.perf_counter() - started) / done
    whole = duration(recipe.seconds or recipe.steps * each)
    return f"{1 / each:.3g} steps a second here: about {whole} of training, evaluation not counted"


def duration(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"

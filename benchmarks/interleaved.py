"""Steps of two training runs on fashion16 in turn; how they are timed: `stepwell.analyze.step_cost`."""

from __future__ import annotations

from accelerate import Accelerator

from stepwell.analyze.step_cost import Stepped, stepped
from stepwell.recipes.experiment import experiment
from stepwell.recipes.load import load
from stepwell.recipes.training import training_of


def trained(settings: dict[str, str]) -> Stepped:
    """A training run with these settings, a step at a time."""
    words = [f"{key}={value}" for key, value in settings.items()]
    plan = load("fashion16", words)
    return stepped(training_of(experiment(plan), Accelerator(cpu=True)), plan.recipe.batch)

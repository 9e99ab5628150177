"""Schedules of the learning rate: as diffusers has them, and exact under resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from diffusers.optimization import get_scheduler
from small_runs import assert_same_run, small_run, words
from test_resume import stopped_and_resumed

from stepwell.core.errors import StepwellError
from stepwell.recipes.load import load
from stepwell.recipes.schema import BadRecipe
from stepwell.train.learning_rate import LearningRate


def test_warm_up_is_linear_and_ends_at_the_rate() -> None:
    assert [LearningRate(0.4, 4).at(step) for step in range(6)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.4, 0.4]
    )
    assert LearningRate(0.4).at(0) == 0.4


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_after_warm_up_schedules_are_those_of_diffusers(schedule: str) -> None:
    name = {"constant": "constant_with_warmup"}.get(schedule, schedule)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    theirs = get_scheduler(name, optimizer, num_warmup_steps=10, num_training_steps=100)
    ours = LearningRate(0.3, 10, schedule, 100)
    for step in range(100):
        if step >= 10:
            assert ours.at(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        theirs.step()


def test_wsd_is_stable_and_then_falls_to_nothing() -> None:
    rate = LearningRate(1.0, 10, "wsd", 110)
    assert [rate.at(step) for step in (9, 10, 60, 90, 100, 110)] == pytest.approx([1, 1, 1, 1, 0.5, 0])


@pytest.mark.full
def test_a_decaying_run_resumes_exactly_and_keeps_its_length(tmp_path: Path) -> None:
    changes = {"lr_schedule": "cosine", "warm_up_steps": 2}
    small_run(tmp_path / "whole", **changes)
    stopped_and_resumed(tmp_path / "run", 5, **changes)
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if line["kind"] == "train"]
    assert rates[-1] < 0.1 * max(rates)
    with pytest.raises(StepwellError, match="steps"):
        small_run(tmp_path / "run", **changes, steps=20)


def test_what_cannot_decay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="leave out seconds="):
        load("fashion16", words(tmp_path, lr_schedule="cosine", seconds=5))
    with pytest.raises(BadRecipe, match="give fewer"):
        load("fashion16", words(tmp_path, lr_schedule="linear", warm_up_steps=12))
    with pytest.raises(BadRecipe, match="lr_schedule"):
        load("fashion16", words(tmp_path, lr_schedule="cosinus"))

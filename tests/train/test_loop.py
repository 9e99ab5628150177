"""What the loop does around a step."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import records_without_clock, small_run, words

from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan
from stepwell.train import loop
from stepwell.train.ema import Ema
from stepwell.train.recorder import DENSITY_POINTS, Clock
from stepwell.train.step import TrainingStopped


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.train_step

    def poisoned(training: Any, step: int) -> Any:
        if step == 7:
            with torch.no_grad():
                next(training.denoiser.parameters()).fill_(torch.nan)
        return real(training, step)

    monkeypatch.setattr(loop, "train_step", poisoned)
    with pytest.raises((TrainingStopped, ArithmeticError)) as caught:
        small_run(tmp_path / "run", method="uniform")
    assert "step 8 (timesteps " in str(caught.value)
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-000000003.safetensors", "step-000000006.safetensors"]


def test_a_run_directory_says_what_where_and_how(tmp_path: Path) -> None:
    small_run(tmp_path / "run", samples=4, sample_steps=2, steps=4)
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert {"threads", "device", "processes", "parameters", "commit", "cores"} <= environment.keys()
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["method"] == "loss-ema"
    assert list((tmp_path / "run" / "samples").glob("*.png"))
    lines = records_without_clock(tmp_path / "run")
    kinds = [(line["kind"], line["step"]) for line in lines]
    assert kinds == [("evaluation", 0), *[("train", k) for k in (1, 2, 3, 4)], ("evaluation", 4)]
    assert lines[-1]["images"] == 4 * 8
    assert len(lines[-1]["bands"]) == 4
    assert "objective/simple" in lines[-1]
    assert len(lines[-1]["density"]) == len(lines[-1]["effective_weight"]) == DENSITY_POINTS
    flat = [1.0] * DENSITY_POINTS
    assert lines[-1]["effective_weight"] == pytest.approx(flat), "corrected and unweighted"


def test_training_lowers_the_held_out_loss(tmp_path: Path) -> None:
    small_run(tmp_path / "run", steps=40, batch=16, evaluate_every=40, checkpoint_every=40)
    first, last = (r for r in records_without_clock(tmp_path / "run") if r["kind"] == "evaluation")
    assert last["objective/simple"] < 0.7 * first["objective/simple"]


def test_the_loss_is_corrected_and_averaged_over_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, corrected = loop.train_step, []

    def checked(training: Any, step: int) -> Any:
        sampler = copy.deepcopy(training.pacer.sampler)
        report = real(training, step)
        assert report.u.shape == (2 * 8,)
        # linear's reference is uniform: the correction is 1 / density.
        expected = (report.losses / sampler.density(report.u)).mean()
        torch.testing.assert_close(report.loss, expected, rtol=1e-4, atol=0)
        corrected.append(abs(float(expected / report.losses.mean()) - 1))
        return report

    monkeypatch.setattr(loop, "train_step", checked)
    small_run(tmp_path / "run", steps=4, accumulate=2)
    assert max(corrected) > 1e-3, "otherwise no correction would show"


def test_the_clock_stands_still_while_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("stepwell.train.recorder.time.perf_counter", lambda: now[0])
    clock = Clock(10.0)
    now[0] = 2.0
    with clock.paused(), clock.paused():
        now[0] = 50.0
        assert clock.seconds == 12.0
    now[0] = 51.0
    assert clock.seconds == 13.0


def test_a_time_budget_ends_training(tmp_path: Path) -> None:
    at = run_plan(
        load("fashion16", words(tmp_path / "run", steps=10**6, seconds=0.5, checkpoint_every=10**6)),
        say=lambda text: None,
    )
    assert 1 <= at.step < 10**5
    assert at.clock.seconds < 10


def test_ema_ramps_and_power_profiles() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    constant = Ema([weight], 0.99)
    assert constant.decay(0) == pytest.approx(0.1)
    assert constant.decay(10**6) == 0.99
    power = Ema([weight], 1.0, "power")
    with torch.no_grad():
        for step in range(4):
            weight.fill_(float(step + 1))
            power.step(step)
    # g = 1 weighs the n-th value by n^2 - (n - 1)^2: (1 + 3 x 2 + 5 x 3 + 7 x 4) / 16.
    assert power.average[0].tolist() == pytest.approx([3.125] * 3)
    with power.in_place():
        assert weight.tolist() == pytest.approx([3.125] * 3)
    assert weight.tolist() == [4.0] * 3


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    from stepwell.runs.directory import Run, RunError

    first = Run(tmp_path / "run")
    first.open({}, frozenset())
    second = Run(tmp_path / "run")
    with pytest.raises(RunError, match=f"process {os.getpid()} on"):
        second.open({}, frozenset())
    second.close()
    first.close()


OPTIONS: list[dict[str, Any]] = [
    {"precision": "bf16"},
    {"channels_last": True},
    {"optimizer": "adam"},
    {"gradient_checkpointing": True},
    {"device": "cpu"},
    {"process": "flow"},
    {"process": "edm"},
    {"process": "cosine:prediction=v"},
    {"method": "speed"},
    {"method": "logit-normal+min-snr"},
    {"ema_kind": "power", "ema": 6.94},
    {"clip": "none"},
    {"learned_variance": True},
]


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_every_option_trains(tmp_path: Path, changes: dict[str, Any]) -> None:
    small_run(tmp_path / "run", steps=3, **changes)
    assert all(line["loss"] is not None for line in records_without_clock(tmp_path / "run") if "loss" in line)


def test_uniform_draws_where_the_process_has_others_are_told(tmp_path: Path) -> None:
    said: list[str] = []
    for method, process in (("uniform", "edm"), ("reference", "edm"), ("min-snr", "edm"), ("uniform", "vp")):
        given = words(tmp_path / f"{method}-{process}", method=method, process=process, steps=1)
        run_plan(load("fashion16", given), say=said.append)
    assert [line for line in said if "method=reference" in line] == [
        "edm draws from its own density, which is not uniform: see method=reference"
    ]

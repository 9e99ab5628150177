"""Resume is "run the same command again", and nobody can tell afterwards."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import case
from small_runs import SMALL, assert_same_run, newest_tensors, records_without_clock, small_run, words

from stepwell.core.errors import StepwellError
from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan
from stepwell.train import checkpoint, loop

LEARNED: list[dict[str, Any]] = [
    {"method": "neyman:strata=3,every_steps=2,images=4+min-snr", "batch": 4},
    {"method": "beta-policy:every_steps=2,queue=4,grid=6,subset=2", "batch": 4},
    {"method": "neyman:strata=3,every_steps=2,images=2", "batch": 8},
    {"method": "alignment:strata=3,every_steps=2,images=4", "batch": 4},
    {"method": "alignment:strata=3,every_steps=2,images=2", "batch": 8},
    {"method": "beta-policy:every_steps=1,credit=alignment", "batch": 8},
    {"method": "beta-policy:paper=true,every_steps=2,queue=4,grid=6,subset=2", "batch": 4},
]
"""At batch 4 a probe's 8 images come from two steps: the pool has to be in the checkpoint."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("whole") / "run")


def stopped_and_resumed(out: Path, stop: int, **changes: Any) -> list[str]:
    """A run that was interrupted in one step and then run again; what it said until it stopped."""
    said: list[str] = []
    real = loop.train_step

    def interrupted(training: Any, step: int) -> Any:
        if step == stop - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return real(training, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", interrupted)
        assert run_plan(load("fashion16", words(out, **changes)), say=said.append).step == stop
    small_run(out, **changes)
    return said


@pytest.mark.parametrize("stop", [case(stop, quick=stop < 11) for stop in (3, 5, 11)])
def test_an_interrupted_run_ends_as_one_that_was_never_stopped(
    whole: Path, tmp_path: Path, stop: int
) -> None:
    said = stopped_and_resumed(tmp_path / "run", stop)
    assert any("Run the same command again" in line for line in said)
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.parametrize("changes", [case(c, quick=c in LEARNED[:2], id=c["method"]) for c in LEARNED])
def test_samplers_that_measure_resume_exactly(tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = {**changes, "steps": 9}
    small_run(tmp_path / "whole", **changes)
    # Right before a probe, which then needs what its pool held, and right after one, whose metrics stand.
    for stop in (8, 7):
        stopped_and_resumed(tmp_path / f"run-{stop}", stop, **changes)
        assert_same_run(tmp_path / "whole", tmp_path / f"run-{stop}")
    last = records_without_clock(tmp_path / "whole")[-2]
    assert last["kind"] == "train"
    learned = last.get("sampler/strata_seen", last.get("sampler/policy_move"))
    assert learned > 0, "otherwise nothing was learned that a resume could lose"


@pytest.mark.parametrize(
    "method",
    [case("auto+uncertainty", quick=True), case("uncertainty-mean", quick=False)],
)
def test_weightings_that_learn_resume_exactly(tmp_path: Path, method: str) -> None:
    settings = {"method": method, "steps": 9, "accumulate": 2}
    small_run(tmp_path / "whole", **settings)
    stopped_and_resumed(tmp_path / "run", 5, **settings)
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    learned = {name: t for name, t in newest_tensors(tmp_path / "run").items() if "pacer/weighting" in name}
    assert any(tensor.any() for tensor in learned.values()), "otherwise nothing was learned"
    evaluations = [r for r in records_without_clock(tmp_path / "run") if r["kind"] == "evaluation"]
    assert len(set(evaluations[0]["effective_weight"])) == 1, "all weights are 1 at first"
    assert len(set(evaluations[-1]["effective_weight"])) > 1
    assert not any("uncertainty" in key for key in evaluations[-1]), "it is no held-out objective"


def test_paired_noise_resumes_exactly(tmp_path: Path) -> None:
    settings = {"method": "uniform", "batch": 5, "accumulate": 2, "steps": 6}
    for noise in ("paired", "independent"):
        small_run(tmp_path / noise, **settings, noise=noise)
    stopped_and_resumed(tmp_path / "run", 4, **settings, noise="paired")
    assert_same_run(tmp_path / "paired", tmp_path / "run")
    one, other = (newest_tensors(tmp_path / noise) for noise in ("paired", "independent"))
    assert any(not torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_the_samplers_seconds_go_on_after_a_resume(tmp_path: Path) -> None:
    stopped_and_resumed(tmp_path / "run", 7, **LEARNED[0])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["sampler_seconds"] for line in lines if line["kind"] == "train"]
    assert len(seconds) == SMALL["steps"]
    assert seconds == sorted(seconds)


def test_another_seed_is_another_run(whole: Path, tmp_path: Path) -> None:
    small_run(tmp_path / "run", seed=1)
    assert newest_tensors(tmp_path / "run").keys() == newest_tensors(whole).keys()
    with pytest.raises(AssertionError):
        assert_same_run(whole, tmp_path / "run")


@pytest.mark.parametrize("damage", [case(how, quick=how == "flip") for how in ("truncate", "flip", "empty")])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    whole: Path, tmp_path: Path, damage: str
) -> None:
    said: list[str] = []
    small_run(tmp_path / "run", steps=6)
    newest = tmp_path / "run" / "checkpoints" / "step-000000006.safetensors"
    content = bytearray(newest.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = bytearray()
    else:
        content[-5] ^= 0x10
    newest.write_bytes(content)
    run_plan(load("fashion16", words(tmp_path / "run")), say=said.append)
    assert any("step-000000006" in line and "Passing over" in line for line in said)
    assert any("Resumed at step 3" in line for line in said)
    assert_same_run(whole, tmp_path / "run")


def test_other_settings_are_refused_by_name(whole: Path) -> None:
    before = records_without_clock(whole)
    with pytest.raises(StepwellError, match=r"lr=0\.002 there, 0\.01 here"):
        small_run(whole, lr=0.01)
    assert records_without_clock(whole) == before


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    small_run(tmp_path / "run", steps=3)
    stored = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-000000003.safetensors")
    stored.tree["model"].pop(next(iter(stored.tree["model"])))
    checkpoint.save(tmp_path / "run" / "checkpoints", stored, keep=2)
    with pytest.raises(StepwellError, match="is of another model"):
        small_run(tmp_path / "run")


def _first_moment(tree: dict[str, Any], tensor: torch.Tensor) -> None:
    tree["optimizer"]["state"][0]["exp_avg"] = tensor


def _first_count(tree: dict[str, Any], tensor: torch.Tensor) -> None:
    tree["optimizer"]["state"][0]["step"] = tensor


def _first_average(tree: dict[str, Any], tensor: torch.Tensor) -> None:
    tree["ema"][0] = tensor


def _a_state_too_many(tree: dict[str, Any], tensor: torch.Tensor) -> None:
    tree["optimizer"]["state"][10_000] = {"exp_avg": tensor}


def _no_groups(tree: dict[str, Any], tensor: torch.Tensor) -> None:
    tree["optimizer"]["param_groups"] = []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_first_moment, r"state 0/exp_avg, \[2, 3\] there and"),
        (_first_count, r"state 0/step, \[2, 3\] there and \[\] here"),
        (_first_average, r"average 0, \[2, 3\] there and"),
        (_a_state_too_many, "a parameter 10000"),
        (_no_groups, "list of parameters"),
    ],
)
def test_moments_and_averages_of_other_shapes_are_refused_before_they_are_used(
    tmp_path: Path, change: Callable[[dict[str, Any], torch.Tensor], None], said: str
) -> None:
    small_run(tmp_path / "run", steps=1)
    stored = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-000000001.safetensors")
    change(stored.tree, torch.ones(2, 3))
    checkpoint.save(tmp_path / "run" / "checkpoints", stored, keep=2)
    with pytest.raises(StepwellError, match=said):
        small_run(tmp_path / "run", steps=2)


def test_another_number_of_processes_is_refused_unless_inexact(tmp_path: Path) -> None:
    small_run(tmp_path / "run", steps=3)
    stored = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-000000003.safetensors")
    stored.info["world"] = 2
    checkpoint.save(tmp_path / "run" / "checkpoints", stored, keep=2)
    with pytest.raises(StepwellError, match="--inexact"):
        small_run(tmp_path / "run")
    at = run_plan(load("fashion16", words(tmp_path / "run")), inexact=True, say=lambda text: None)
    assert at.step == SMALL["steps"]


def test_a_run_whose_checkpoints_are_all_damaged_is_not_started_over(tmp_path: Path) -> None:
    small_run(tmp_path / "run", steps=3)
    before = records_without_clock(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-000000003.safetensors").write_bytes(b"gone")
    with pytest.raises(StepwellError, match="move them away to start from nothing"):
        small_run(tmp_path / "run")
    assert records_without_clock(tmp_path / "run") == before


def test_data_that_changed_are_refused(tmp_path: Path) -> None:
    small_run(tmp_path / "run", steps=3)
    stored = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-000000003.safetensors")
    stored.info["data_images"] = 11_999
    checkpoint.save(tmp_path / "run" / "checkpoints", stored, keep=2)
    with pytest.raises(StepwellError, match="have 12000 images and had 11999"):
        small_run(tmp_path / "run")


def test_only_the_newest_checkpoints_are_kept(whole: Path) -> None:
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == [
        "step-000000009.safetensors",
        "step-000000012.safetensors",
    ]

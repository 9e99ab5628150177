"""metrics.jsonl or recipe.json damaged beside good checkpoints: the run goes on, and says what was lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from train.small_runs import SMALL, newest_tensors, records_without_clock, small_run, words

from stepwell.core.errors import StepwellError
from stepwell.recipes.load import load, saved_plan
from stepwell.recipes.run import run_plan
from stepwell.train import checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was stopped after half of its steps."""
    return small_run(tmp_path / "run", steps=6)


def resumed(run: Path, **changes: object) -> list[str]:
    """What is said when a run goes on to its end."""
    said: list[str] = []
    at = run_plan(load("fashion16", words(run, **changes)), say=said.append)
    assert at.step == SMALL["steps"]
    return said


def assert_same_weights(a: Path, b: Path) -> None:
    ours, theirs = newest_tensors(a), newest_tensors(b)
    assert [name for name in ours if not ours[name].equal(theirs[name])] == []


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _drop_lines(path: Path) -> None:
    """Without the last lines: what is left looks whole."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


def _scribble(path: Path) -> None:
    """As long as before, with an unreadable end."""
    content = path.read_bytes()
    path.write_bytes(content[:-100] + b"\x00" * 100)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [_cut, _drop_lines, _scribble, _empty, Path.unlink])
def test_metrics_that_are_lost_are_told_and_training_goes_on_exactly(
    harm: Callable[[Path], None], run: Path, whole: Path
) -> None:
    harm(run / "metrics.jsonl")
    told = [line for line in resumed(run) if "was cut or edited since the checkpoint of step 6" in line]
    assert len(told) == 1
    assert_same_weights(run, whole)
    kept, all_of_them = records_without_clock(run), records_without_clock(whole)
    assert kept == [record for record in all_of_them if record in kept], "in order, and none twice"
    after = [record for record in all_of_them if record["step"] > 6]
    assert kept[-len(after) :] == after


def test_a_second_stop_before_the_next_checkpoint_leaves_no_record_twice(run: Path, whole: Path) -> None:
    """Then the file is long enough again, and what it holds at that length is of another step."""
    metrics = run / "metrics.jsonl"
    _cut(metrics)
    kept = metrics.read_bytes().rpartition(b"\n")[0] + b"\n"
    later = (whole / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    metrics.write_bytes(kept + b"".join(line for line in later if json.loads(line)["step"] > 6))
    resumed(run)
    steps = [(record["kind"], record["step"]) for record in records_without_clock(run)]
    assert len(steps) == len(set(steps))
    assert_same_weights(run, whole)


@pytest.mark.parametrize("harm", [_cut, _scribble, _empty, Path.unlink])
def test_a_recipe_is_restored_from_a_checkpoint(harm: Callable[[Path], None], run: Path, whole: Path) -> None:
    before = json.loads((run / "recipe.json").read_text())
    harm(run / "recipe.json")
    assert saved_plan(run).recipe.method == "loss-ema", "generate and evaluate need no repair"
    with pytest.raises(StepwellError, match=r"lr=0\.002 there, 0\.01 here"):
        small_run(run, lr=0.01)
    assert any("a checkpoint has a copy, and it was written again" in line for line in resumed(run))
    assert json.loads((run / "recipe.json").read_text()) == {**before, "steps": SMALL["steps"]}
    assert_same_weights(run, whole)


def test_a_recipe_without_a_copy_is_written_again_and_that_is_told(run: Path, whole: Path) -> None:
    """Checkpoints of older versions have none."""
    for step in checkpoint.steps(run / "checkpoints"):
        stored = checkpoint.load(checkpoint.file(run / "checkpoints", step))
        del stored.info["recipe"]
        checkpoint.save(run / "checkpoints", stored, keep=2)
    (run / "recipe.json").write_text("{")
    with pytest.raises(StepwellError, match="is not valid JSON"):
        saved_plan(run)
    assert any("no checkpoint has a copy: it was written again from this" in line for line in resumed(run))
    assert_same_weights(run, whole)

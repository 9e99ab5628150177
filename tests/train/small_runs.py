"""Small training runs for the tests of training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState

from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan
from stepwell.train import checkpoint
from stepwell.train.checkpoint import split

SMALL = {
    "model": "micro",
    "method": "loss-ema",
    "steps": 12,
    "batch": 8,
    "dropout": 0.1,
    "labels": True,
    "record_every": 1,
    "evaluate_every": 4,
    "evaluate_images": 8,
    "bands": 4,
    "checkpoint_every": 3,
    "samples": 0,
}


def words(out: Path, **changes: Any) -> list[str]:
    """key=value words of a small run."""
    return [f"{key}={value}" for key, value in {**SMALL, "out": str(out), **changes}.items()]


def small_run(out: Path, **changes: Any) -> Path:
    """Train a small run in this process."""
    # accelerate keeps the precision of the first run for the whole process.
    AcceleratorState._reset_state(reset_partial_state=True)
    run_plan(load("fashion16", words(out, **changes)), say=lambda text: None)
    return out


def newest_tensors(out: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the newest checkpoint: model, EMA, optimizer, sampler."""
    found, wrong = checkpoint.newest(out / "checkpoints")
    assert found is not None
    assert not wrong
    return split(found.tree)[1]


def records_without_clock(out: Path) -> list[dict[str, Any]]:
    """The metrics, less the fields that may differ."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    clocks = {"seconds", "sampler_seconds", "images_per_second"}
    return [{key: value for key, value in line.items() if key not in clocks} for line in lines]


def assert_same_run(a: Path, b: Path) -> None:
    """Bit-identical weights, optimizer, sampler and metrics."""
    ours, theirs = newest_tensors(a), newest_tensors(b)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name
    assert records_without_clock(a) == records_without_clock(b)

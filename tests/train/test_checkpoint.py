"""Checkpoints hold any state without pickling, and a full disk costs nothing that was saved."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import newest_tensors, small_run, words

from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan
from stepwell.train import checkpoint
from stepwell.train.checkpoint import join, split
from stepwell.train.step import TrainingStopped

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(TREES)
def test_any_tree_survives(tree: object) -> None:
    plain, tensors = split({"state": tree})
    assert join(plain, tensors) == {"state": tree}


def test_tensors_keep_their_bits_dtypes_and_shapes(tmp_path: Path) -> None:
    tree: dict[str, Any] = {
        "model": {"a": torch.randn(3, 4)},
        "ema": [torch.tensor(7), torch.ones(2, dtype=torch.bfloat16)],
        "optimizer": {3: {"empty": torch.zeros(0, 2), "flags": torch.tensor([True, False])}},
        "pacer": {},
    }
    info = {"step": 5, "data_images": 8, "world": 1, "seconds": 0.5}
    path = checkpoint.save(tmp_path, checkpoint.Checkpoint(tree, info), keep=1)
    found = checkpoint.load(path)
    assert found.info == info
    assert torch.equal(found.tree["model"]["a"], tree["model"]["a"])
    assert found.tree["ema"][0] == 7, "tensors of one list have names of their own"
    assert found.tree["ema"][1].dtype == torch.bfloat16
    assert found.tree["optimizer"][3]["empty"].shape == (0, 2)


def test_what_cannot_be_held_is_refused() -> None:
    with pytest.raises(TypeError, match="a checkpoint cannot hold"):
        split({"network": torch.nn.Linear(1, 1)})


def test_foreign_files_are_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    foreign = tmp_path / "step-000000001.safetensors"
    save_file({"x": torch.ones(2)}, foreign)
    with pytest.raises(checkpoint.CheckpointError, match="not a checkpoint of stepwell"):
        checkpoint.load(foreign)
    foreign.write_text("hello")
    with pytest.raises(checkpoint.CheckpointError, match="truncated or not a checkpoint"):
        checkpoint.load(foreign)


def test_a_full_disk_stops_with_the_last_checkpoint_intact(tmp_path: Path) -> None:
    small_run(tmp_path / "run", steps=3)
    before = newest_tensors(tmp_path / "run")
    size = (tmp_path / "run" / "checkpoints" / "step-000000003.safetensors").stat().st_size
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    # A limit on file size fails writes as a full disk does.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
    try:
        with pytest.raises(TrainingStopped, match="the one of step 3 is kept"):
            run_plan(load("fashion16", words(tmp_path / "run")), say=lambda text: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    after = newest_tensors(tmp_path / "run")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    assert small_run(tmp_path / "run")

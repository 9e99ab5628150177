"""SIGKILL at any moment, during a checkpoint too, and the same command again."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import assert_same_run, newest_tensors, small_run, words

# Checkpoints in every step: most kills fall into the writing of one.
CHANGES = {"steps": 30, "checkpoint_every": 1, "evaluate_every": 7}


def _train(arguments: list[str]) -> None:
    """In a process of its own."""
    import torch

    from stepwell.recipes.load import load
    from stepwell.recipes.run import run_plan

    torch.set_num_threads(1)
    run_plan(load("fashion16", arguments), say=lambda text: None)


def _killed_and_resumed(tmp_path: Path, kills: int) -> None:
    # A fork server imports once: every start is then quick, and every kill is a real SIGKILL.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stepwell.recipes.run"])
    chance = random.Random(0)

    def start(out: Path) -> Any:
        child = context.Process(target=_train, args=(words(out, **CHANGES),))
        child.start()
        return child

    start(tmp_path / "first").join()
    whole = tmp_path / "whole"
    started = time.monotonic()
    child = start(whole)
    child.join()
    assert child.exitcode == 0
    length = time.monotonic() - started
    broken, done = tmp_path / "broken", 0
    while done < kills:
        child = start(broken)
        child.join(chance.uniform(0.1, 0.8) * length)
        if child.exitcode is None:
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
        if child.exitcode == -signal.SIGKILL:
            done += 1
        elif child.exitcode == 0:
            # It came to its end between kills: compare, and start over.
            assert_same_run(whole, broken)
            broken = tmp_path / f"broken-{done}"
        else:
            pytest.fail(f"a resumed run failed with exit code {child.exitcode}")
    child = start(broken)
    child.join()
    assert child.exitcode == 0
    assert_same_run(whole, broken)


@pytest.mark.full
def test_five_kills_leave_no_trace(tmp_path: Path) -> None:
    _killed_and_resumed(tmp_path, 5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_kills_leave_no_trace(tmp_path: Path) -> None:
    _killed_and_resumed(tmp_path, 100)


def test_a_kill_in_the_middle_of_a_checkpoint_keeps_the_one_before(tmp_path: Path) -> None:
    small_run(tmp_path / "run", steps=3)
    (tmp_path / "run" / "checkpoints" / ".step-000000006.safetensors.tmp").write_bytes(b"half a file")
    small_run(tmp_path / "run")
    small_run(tmp_path / "whole")
    run, whole = newest_tensors(tmp_path / "run"), newest_tensors(tmp_path / "whole")
    assert all(torch.equal(run[name], whole[name]) for name in whole)

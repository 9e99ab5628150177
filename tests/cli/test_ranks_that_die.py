"""One rank of two is killed, stops, fails or differs: both end in time, and the other says which it was."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from train.small_runs import assert_same_run

from stepwell.train import checkpoint

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

LIMIT = 8
"""Seconds without an answer, in place of 60."""

# What happens to rank 1 before its fourth step, or at its start.
SCRIPT = """
import os, signal, sys, time, torch
torch.set_num_threads(1)
from stepwell.cli.main import main
from stepwell.recipes import run as running
from stepwell.train import loop

fault, words, mine = sys.argv[1], sys.argv[2:], os.environ["RANK"] == "1"
real, evaluation_of = loop.train_step, running.evaluation_of

def step(training, number):
    if number == 3 and mine and fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 3 and mine and fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if number == 3 and mine and fault == "out of memory":
        torch.empty(1 << 50)
    if number == 3 and mine and fault == "not finite":
        examples = training.batches.at
        training.batches.at = lambda *a: (b := examples(*a), b.x0.fill_(float("nan")))[0]
    return real(training, number)

def slow(experiment, device):
    evaluate = evaluation_of(experiment, device)
    return lambda network: (time.sleep(12), evaluate(network))[1]

loop.train_step = step
if fault == "slow evaluation":
    running.evaluation_of = slow
if mine and fault == "another recipe":
    words.append("lr=0.01")
if mine and fault == "other data":
    from stepwell.recipes import experiment
    whole = experiment.load_data
    def changed(*a, **k):
        found = whole(*a, **k)
        found.train._pixels[0] = 255 - found.train._pixels[0]
        return found
    experiment.load_data = changed
sys.exit(main(["train", "fashion16", *words]))
"""
SMALL = ["model=micro", "method=loss-ema", "batch=4", "checkpoint_every=2", "samples=0", "evaluate_images=4"]
SENTENCES = {
    "killed": "rank 1 of 2 ended without a word: it was killed",
    "stopped": f"rank 1 of 2 has not answered for {LIMIT} s: it is stopped",
    "out of memory": "rank 1 of 2 ended: there is too little memory (",
    "not finite": "rank 1 of 2 ended: the loss or its gradient is not finite at step 4 (timesteps ",
    "another recipe": "rank 1 of 2 would train something else: lr is 0.01 there and 0.002 on rank 0.",
    "other data": "rank 1 of 2 would train something else: the training data is ",
}


def started(tmp_path: Path, fault: str, *words: str) -> list[subprocess.Popen[str]]:
    """Two ranks, started as SLURM or mpirun would start them: nobody ends one when the other has ended."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    shared["STEPWELL_RANK_TIMEOUT"] = str(LIMIT)
    command = [sys.executable, str(script), fault, f"out={tmp_path / 'run'}", *SMALL, *words]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.mark.parametrize("fault", SENTENCES)
def test_the_other_rank_ends_and_names_it(fault: str, tmp_path: Path) -> None:
    zero, one = started(tmp_path, fault, "evaluate_every=0", "steps=100000")
    said = zero.communicate(timeout=120)[1]
    if fault == "stopped":
        one.send_signal(signal.SIGCONT)
    one.communicate(timeout=3 * LIMIT)
    assert zero.returncode == 2
    assert SENTENCES[fault] in said
    assert "Traceback" not in said
    assert said.count("rank 1 of 2") == 1
    folder = tmp_path / "run" / "checkpoints"
    assert sorted(checkpoint.steps(folder)) == ([] if "other" in fault else [2])
    assert all(checkpoint.load(checkpoint.file(folder, step)) for step in checkpoint.steps(folder))
    assert not [path for path in (tmp_path / "run").rglob("*") if "tmp" in path.name]


def test_a_rank_that_stops_ends_the_others_within_the_limit(tmp_path: Path) -> None:
    ranks = started(tmp_path, "none", "evaluate_every=0", "steps=100000")
    folder = tmp_path / "run" / "checkpoints"
    while not any(checkpoint.steps(folder)):
        assert all(rank.poll() is None for rank in ranks), [rank.communicate() for rank in ranks]
        time.sleep(0.5)
    # Rank 0 keeps the store through which the ranks hear each other.
    ranks[0].send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    said = ranks[1].communicate(timeout=60)[1]
    assert time.monotonic() - stopped < LIMIT + 10
    assert ranks[1].returncode == 2
    assert f"stepwell (rank 1): rank 0 of 2 ended or has not answered for {LIMIT} s." in said
    ranks[0].send_signal(signal.SIGCONT)
    ranks[0].communicate(timeout=3 * LIMIT)
    assert ranks[0].returncode == 2


def test_ranks_that_wait_for_an_evaluation_longer_than_the_limit_go_on(tmp_path: Path) -> None:
    ranks = started(tmp_path, "slow evaluation", "evaluate_every=2", "steps=2", "evaluate_images=4")
    said = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said


def test_torchrun_goes_on_exactly_after_a_rank_was_killed(tmp_path: Path) -> None:
    # Killed in its first attempt only.
    first = (
        'fault, words = sys.argv[1] if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else "", sys.argv[2:]'
    )
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("fault, words, mine = sys.argv[1], sys.argv[2:],", f"{first}\nmine ="))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1"]
    words = [*SMALL, "evaluate_every=0", "record_every=1", "steps=6"]
    said = {}
    for fault in ("none", "killed"):
        command = [sys.executable, *launch, str(script), fault, f"out={tmp_path / fault}", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        said[fault] = done.stderr
    assert "rank 1 of 2 ended without a word" in said["killed"]
    assert_same_run(tmp_path / "none", tmp_path / "killed")

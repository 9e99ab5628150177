"""Against a real SLURM, started here: studies, preemption, a drained node, a controller that restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster, missing, until
from train.small_runs import assert_same_run

from stepwell.cli.main import main

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

STUDY = """
methods = ["uniform"]
workloads = ["fashion16"]
[effort]
generated = 0
bits_images = 2
bits_timesteps = 2
"""
SMALL = (
    "model=micro batch=4 samples=0 evaluate_images=8 evaluate_every=50 bands=4 record_every=1 "
    "checkpoint_every=1000"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    before = dict(os.environ)
    try:
        made.start()
        # Commands find the cluster as a user's do, and find stepwell as these tests do.
        os.environ.update({key: made.environment[key] for key in ("SLURM_CONF", "PATH")})
        yield made
    finally:
        os.environ.clear()
        os.environ.update(before)
        made.stop()


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The words of a small study."""
    (tmp_path / "quick.toml").write_text(STUDY)
    return ["compare", str(tmp_path / "quick.toml"), *SMALL.split()]


ON_SLURM = ["--launcher", "slurm", "--gpus", "0", "--time", "10"]


_STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_left(cluster: Cluster) -> Iterator[None]:
    """After a test, failed or not, no command of it runs and no job waits."""
    yield
    while _STARTED:
        with _STARTED.pop() as command:
            command.kill()
    cluster.empty()


def started(*command: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "stepwell", *command]
    _STARTED.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return _STARTED[-1]


def ended(running: subprocess.Popen[str]) -> str:
    """What a command printed, which must not fail."""
    out, error = running.communicate(timeout=200)
    assert running.returncode == 0, error
    assert "Traceback" not in error
    return out


def step_of(run: Path) -> int:
    """The last step on record."""
    file = run / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith(b"}\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def table(out: str) -> list[Any]:
    """The table of a summary, less the columns that a clock fills."""
    content = json.loads(out)["workloads"][0]["table"]
    clocks = {i for i, name in enumerate(content["columns"]) if "seconds" in name}
    return [[cell for i, cell in enumerate(row) if i not in clocks] for row in content["rows"]]


def test_a_study_survives_its_submitter_a_drained_node_and_a_new_controller(
    cluster: Cluster, words: list[str], tmp_path: Path
) -> None:
    words += ["methods=uniform,loss-ema", "seeds=2", "steps=150", "--json"]
    whole = ended(started(*words, f"out={tmp_path / 'whole'}"))
    command = [*words, f"out={tmp_path / 'jobs'}", *ON_SLURM]
    first = started(*command)
    until(lambda: len(cluster.jobs("RUNNING")) == 2 and len(cluster.jobs()) == 4, "two jobs at a time")
    first.kill()
    first.communicate()
    numbers = cluster.jobs()
    cluster.ask("scontrol", "update", f"NodeName={cluster.host}", "State=DRAIN", "Reason=test")
    cluster.stop_controller()
    time.sleep(2)
    cluster.start_controller()
    again = started(*command)
    # What runs goes on to its end; what waits does not start on a node that is drained.
    until(lambda: len(cluster.jobs("RUNNING")) == 0, "the end of what ran")
    assert len(cluster.jobs("PENDING")) == 2
    cluster.ask("scontrol", "update", f"NodeName={cluster.host}", "State=RESUME")
    assert table(ended(again)) == table(whole)
    for run in (tmp_path / "whole").glob("fashion16/*/*"):
        assert_same_run(run, tmp_path / "jobs" / run.relative_to(tmp_path / "whole"))
    # No trial ran twice: the next job has the next number, and nothing is left to do.
    ended(started(*command))
    submitted = cluster.ask("sbatch", "--parsable", "--hold", "--wrap=true")
    cluster.ask("scancel", submitted)
    assert int(submitted) == max(map(int, numbers)) + 1
    assert list((tmp_path / "jobs" / "slurm").iterdir()) == [], "jobs that ended well leave no files"


def test_a_trial_preempted_five_times_is_the_same_run(
    cluster: Cluster, words: list[str], tmp_path: Path
) -> None:
    words += ["methods=neyman", "seeds=1", "steps=300"]
    ended(started(*words, f"out={tmp_path / 'whole'}"))
    running = started(*words, f"out={tmp_path / 'jobs'}", *ON_SLURM)
    run, before = tmp_path / "jobs/fashion16/neyman/0", 0
    for number in range(5):
        until(lambda: step_of(run) > before and cluster.jobs("RUNNING"), "more steps")  # noqa: B023
        (job,) = cluster.jobs()
        cluster.ask("scancel", f"--signal={('USR1', 'TERM')[number % 2]}", job)
        cluster.start_again(job)
        before = step_of(run)
        assert before < 300
    assert cluster.ask("scontrol", "show", "job", job, "-o").partition("Restarts=")[2][0] in "45"
    ended(running)
    assert_same_run(tmp_path / "whole/fashion16/neyman/0", run)


def test_a_job_of_two_processes_is_preempted_and_goes_on(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "fashion16", "method=loss-ema", *SMALL.split(), "steps=150"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    whole = [*torchrun, "-m", "stepwell", *words, f"out={tmp_path / 'whole'}"]
    assert subprocess.run(whole, capture_output=True).returncode == 0
    run = tmp_path / "jobs"
    command = [*words, f"out={run}", *ON_SLURM, "--processes", "2", "--sbatch", "cpus-per-task=2"]
    assert main(command) == 0
    (job,) = cluster.jobs()
    assert main(command) == 0
    assert f"is in the queue already, as job {job}." in capsys.readouterr().out
    until(lambda: step_of(run) > 0, "steps")
    cluster.ask("scancel", "--signal=USR1", job)
    cluster.start_again(job)
    assert 0 < step_of(run) < 150
    until(lambda: not cluster.jobs(), "its end")
    assert_same_run(tmp_path / "whole", run)


def test_what_fails_and_what_is_cancelled_is_told(
    cluster: Cluster, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "jobs"
    (out / "fashion16" / "uniform").mkdir(parents=True)
    (out / "fashion16" / "uniform" / "0").write_text("a file where a run directory should be")
    assert main([*words, "seeds=1", f"out={out}", *ON_SLURM]) == 2
    assert "cannot create the run directory" in capsys.readouterr().err
    assert main([*words, "seeds=1", f"out={out}", *ON_SLURM, "--partition", "nosuch"]) == 2
    assert "no job could be submitted" in (told := capsys.readouterr().err)
    assert "nosuch" in told or "partition" in told.lower()
    running = started(*words, "seeds=1", f"out={tmp_path / 'cancelled'}", *ON_SLURM, "steps=100000")
    until(lambda: step_of(tmp_path / "cancelled/fashion16/uniform/0") > 0, "steps")
    (job,) = cluster.jobs()
    cluster.ask("scancel", job)
    _, error = running.communicate(timeout=100)
    assert running.returncode == 2
    assert f"its job {job} ended without a result" in error
    assert cluster.jobs() == [], "a cancelled job does not come back"
    assert list((tmp_path / "cancelled/fashion16/uniform/0/checkpoints").iterdir()), "it was saved first"


def test_ctrl_c_leaves_the_jobs(cluster: Cluster, words: list[str], tmp_path: Path) -> None:
    running = started(*words, "seeds=1", f"out={tmp_path / 'jobs'}", *ON_SLURM, "steps=100000")
    until(lambda: cluster.jobs(), "a job")
    # SIGTERM: where tests run in the background, children are born deaf to SIGINT.
    os.kill(running.pid, signal.SIGTERM)
    _, error = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "submitted jobs go on. Run the same command again to continue." in error
    (job,) = cluster.jobs()
    cluster.ask("scancel", job)

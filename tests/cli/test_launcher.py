"""The batch script of a job, and options that need a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stepwell.cli.main import main
from stepwell.core.errors import InvalidParameter
from stepwell.recipes.slurm import Job, job_name


def test_the_script_of_a_job_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "fashion16", "lr=1e-3", f"out={tmp_path / 'a run'}", "--launcher", "slurm", "--dry-run"]
    asked = [
        "--nodes",
        "2",
        "--gpus",
        "8",
        "--memory",
        "100G",
        "--partition",
        "gpu",
        "--sbatch",
        "account=me",
    ]
    assert main([*words, *asked]) == 0
    script = capsys.readouterr().out
    flags = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    asked_for = ("nodes=2", "ntasks-per-node=1", "gpus-per-node=8", "mem=100G", "partition=gpu", "account=me")
    assert {*asked_for, "signal=USR1@120", "dependency=singleton", "requeue", "time=4:00:00"} <= {*flags}
    assert "--nnodes=2 --nproc-per-node=8" in script
    assert '--rdzv-endpoint="$first:$port"' in script
    assert f"-m stepwell train fashion16 lr=1e-3 'out={tmp_path}/a run' --requeue" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert not (tmp_path / "a run").exists(), "nothing is written"


def test_a_name_belongs_to_one_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert job_name(Path("runs/a")) == job_name(tmp_path / "runs/a")
    assert job_name(Path("runs/a b")) != job_name(Path("runs/a-b"))
    assert job_name(Path("/x/é ü/0")).isascii()


def test_what_only_jobs_have_is_refused_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fashion16", "--gpus", "8"]) == 2
    assert "--gpus is for jobs on a cluster: add --launcher slurm" in capsys.readouterr().err
    assert main(["compare", "fashion16", "--time", "10"]) == 2
    assert "--time is for jobs on a cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"nodes": 0}, "at least one node"),
        ({"gpus": -1}, "negative"),
        ({"more": ("account",)}, "KEY=VALUE without dashes"),
        ({"more": ("--qos=high",)}, "KEY=VALUE without dashes"),
    ],
)
def test_a_job_that_cannot_be(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidParameter, match=sentence):
        Job(**wrong)  # type: ignore[arg-type]


def test_without_slurm_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["train", "fashion16", f"out={tmp_path / 'run'}", "--launcher", "slurm"]) == 2
    assert "there is no squeue on this machine" in capsys.readouterr().err

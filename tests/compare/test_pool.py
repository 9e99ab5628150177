"""Studies that really run: stopped in the middle, failing in part, shared between machines of records."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stepwell.cli.main import main

pytestmark = pytest.mark.full

SMALL = [
    "model=micro",
    "batch=4",
    "steps=20",
    "samples=0",
    "evaluate_images=8",
    "evaluate_every=3",
    "bands=4",
    "checkpoint_every=5",
]
METHODS = "methods=uniform,loss-ema"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study whose scores take no time."""
    (tmp_path / "quick.toml").write_text(
        """
methods = ["uniform"]
workloads = ["fashion16"]
[effort]
generated = 0
bits_images = 2
bits_timesteps = 2
"""
    )
    return tmp_path / "quick.toml"


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["compare", *words, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def without_clocks(summary: dict[str, Any]) -> str:
    """The summary less what a clock or a folder's name says."""
    clocks = {"seconds", "path", "environment", "reproduce", "verdict"}

    def plain(value: object) -> object:
        if isinstance(value, dict):
            columns = value.get("columns")
            if columns:
                dropped = [i for i, name in enumerate(columns) if name == "seconds for same loss"]
                return [[c for i, c in enumerate(row) if i not in dropped] for row in value["rows"]]
            return {key: plain(item) for key, item in value.items() if key not in clocks}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return json.dumps(plain(summary))


def numbers(summary: dict[str, Any]) -> list[float]:
    """Every number in the tables, in their order; records keep five digits."""
    cells = [cell for workload in summary["workloads"] for row in workload["table"]["rows"] for cell in row]
    return [float(word) for cell in cells for word in re.findall(r"\d+\.?\d*(?:e-?\d+)?", cell)]


def test_killed_in_the_middle_and_run_again_gives_the_same_table(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(study), METHODS, *SMALL, "seeds=2"]
    killed = subprocess.Popen(
        [sys.executable, "-m", "stepwell", "compare", *words, f"out={tmp_path / 'killed'}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    metrics = tmp_path / "killed/fashion16/loss-ema/0/metrics.jsonl"
    deadline = time.monotonic() + 200
    while not (metrics.exists() and metrics.stat().st_size > 2000) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert killed.poll() is None, "it is still in the middle"
    killed.kill()
    killed.wait()
    # Its runs notice that nobody listens any more, save and leave.
    while not _free(tmp_path / "killed") and time.monotonic() < deadline:
        time.sleep(0.1)
    again = told(capsys, *words, f"out={tmp_path / 'killed'}")
    whole = told(capsys, *words, f"out={tmp_path / 'whole'}")
    assert without_clocks(again) == without_clocks(whole)
    assert again["running"] is False
    # Nothing is left to do now, and nothing is done.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "whole").rglob("metrics.jsonl")}
    assert told(capsys, *words, f"out={tmp_path / 'whole'}") == whole
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "whole").rglob("metrics.jsonl")}


def _free(out: Path) -> bool:
    """Whether no process holds a run directory below."""
    return all(lock.read_text() == "released\n" for lock in out.rglob(".lock-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_polite_stop_saves_and_says_how_to_go_on(
    study: Path, tmp_path: Path, number: signal.Signals
) -> None:
    words = [str(study), METHODS, *SMALL, "steps=100000", f"out={tmp_path / 'out'}"]
    running = subprocess.Popen(
        [sys.executable, "-m", "stepwell", "compare", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "out/fashion16/uniform/0/metrics.jsonl"
    deadline = time.monotonic() + 200
    while not (metrics.exists() and metrics.stat().st_size > 1000) and time.monotonic() < deadline:
        time.sleep(0.05)
    # Not SIGINT: where tests run in the background, children are born deaf to it. Twice: the second is not
    # to keep the runs from saving.
    os.kill(running.pid, number)
    time.sleep(0.3)
    with suppress(ProcessLookupError):
        os.kill(running.pid, number)
    try:
        out, error = running.communicate(timeout=100)
    finally:
        running.kill()
    assert running.returncode == 130
    assert "Run the same command again to continue." in error
    assert "Traceback" not in out + error
    assert list((tmp_path / "out/fashion16/uniform/0/checkpoints").glob("*.safetensors"))


def test_a_failed_run_does_not_stop_the_others(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "out/fashion16/loss-ema"
    blocked.mkdir(parents=True)
    (blocked / "1").write_text("a file where a run directory should be")
    words = [str(study), METHODS, *SMALL, "seeds=3", "steps=3", "evaluate_every=1", f"out={tmp_path / 'out'}"]
    capsys.readouterr()
    assert main(["compare", *words]) == 2
    caught = capsys.readouterr()
    assert "cannot create the run directory" in caught.err
    assert "1 runs failed, the others are scored" in caught.err
    assert "No verdict: 2 seeds" in caught.out
    assert "Traceback" not in caught.out + caught.err


def test_records_stand_for_runs(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(study), METHODS, *SMALL, "steps=4", "evaluate_every=1", "seeds=1", "tune=1e-3,2e-3"]
    kept = ["--records", str(tmp_path / "records")]
    first = told(capsys, *words, f"out={tmp_path / 'out'}", *kept)
    # Another machine, which has the records and no run: nothing is trained again.
    second = told(capsys, *words, f"out={tmp_path / 'elsewhere'}", *kept)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["study.json"]
    assert numbers(second) == pytest.approx(numbers(first), rel=1e-3)
    # Other settings are another run.
    capsys.readouterr()
    assert main(["compare", *words, "batch=8", f"out={tmp_path / 'new'}", *kept, "--dry-run"]) == 0
    assert "there " not in capsys.readouterr().out

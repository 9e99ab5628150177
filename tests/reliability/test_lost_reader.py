"""A reader, a terminal or a disk for output that goes away: the work is done all the same."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.cli import main as command_line
from stepwell.cli.main import main

SMALL = [
    "train", "fashion16", "model=micro", "batch=4", "steps=60", "evaluate_every=30", "evaluate_images=4",
    "bands=4", "checkpoint_every=30", "samples=4", "sample_steps=2",
]  # fmt: skip


class Gone(io.StringIO):
    """A stream that takes a little text."""

    def __init__(self, error: OSError, takes: int) -> None:
        super().__init__()
        self.error, self.takes = error, takes

    def write(self, text: str) -> int:
        self.takes -= len(text)
        if self.takes < 0:
            raise self.error
        return super().write(text)


def _listed(monkeypatch: pytest.MonkeyPatch, error: OSError, stream: str = "stdout") -> int:
    monkeypatch.setattr(sys, stream, Gone(error, takes=100))
    return main(["ls"])


def test_a_reader_who_left_has_seen_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _listed(monkeypatch, BrokenPipeError(errno.EPIPE, "Broken pipe")) == 0


def test_a_full_disk_for_output_is_an_error_that_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _listed(monkeypatch, OSError(errno.ENOSPC, "No space left on device")) == 2
    assert "all was done, but standard output takes no text (No space left" in capsys.readouterr().err


def test_a_lost_terminal_for_messages_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Gone(OSError(errno.EIO, "Input/output error"), takes=0))
    assert main(["ls"]) == 0
    assert main(["show", "no-such-sampler"]) == 2


def test_streams_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.stdout, sys.stderr
    monkeypatch.setattr(command_line, "_run", lambda arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["ls"])
    assert (sys.stdout, sys.stderr) == before


def _shell(script: str, out: Path) -> subprocess.CompletedProcess[str]:
    """A command in bash, where `$train` trains to `out`."""
    train = " ".join([sys.executable, "-m", "stepwell", *SMALL, f"out={out}"])
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script.replace("$train", train)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _everything_is_there(out: Path) -> None:
    assert (out / "checkpoints/step-000000060.safetensors").exists()
    assert (out / "samples/step-000000060.png").exists()
    assert '"step": 60' in (out / "metrics.jsonl").read_text()


LOST: dict[str, tuple[str, int]] = {
    "the reader leaves": ("$train 2>&1 | true", 0),
    "no error stream": ("$train 2>&-", 0),
    "no output": ("$train >&-", 0),
    "nothing is open": ("$train <&- >&- 2>&-", 0),
    "output is full": ("$train >/dev/full", 2),
    "messages are full": ("$train 2>/dev/full", 0),
}


@pytest.mark.full
@pytest.mark.parametrize("how", LOST)
def test_training_goes_on_to_its_end(how: str, tmp_path: Path) -> None:
    script, code = LOST[how]
    done = _shell(script, tmp_path / "run")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    _everything_is_there(tmp_path / "run")


@pytest.mark.full
def test_a_study_whose_reader_left_scores_every_run(tmp_path: Path) -> None:
    study = ["seeds=1", "steps=4", "model=micro", "batch=4"]
    study += ["evaluate_every=2", "evaluate_images=4", "bands=4", "samples=0", f"out={tmp_path}"]
    (tmp_path / "quick.toml").write_text(
        'methods = ["uniform", "min-snr"]\nworkloads = ["fashion16"]\n'
        "[effort]\ngenerated = 0\nbits_images = 2\nbits_timesteps = 2\n"
    )
    words = " ".join([sys.executable, "-m", "stepwell", "compare", str(tmp_path / "quick.toml"), *study])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{words} 2>&1 | head -1"],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout
    assert len(list(tmp_path.rglob("score.json"))) == 2

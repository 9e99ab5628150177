"""Too little memory: one sentence that says what to lower, whoever noticed it."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from train.small_runs import words

from stepwell.cli.main import main
from stepwell.core.errors import OutOfMemory
from stepwell.core.memory import memory_watched
from stepwell.train import loop

SAID: list[Exception] = [
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("could not create a primitive"),
    RuntimeError("could not create a memory object"),
    RuntimeError("could not execute a primitive"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("std::bad_alloc"),
]


@pytest.mark.parametrize("error", SAID, ids=lambda error: f"{type(error).__name__} {error}"[:40])
def test_training_says_what_to_lower(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*anything: Any) -> None:
        raise error

    monkeypatch.setattr(loop, "train_step", fails)
    assert main(["train", "fashion16", *words(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("stepwell train: there is too little memory (")
    assert "lower batch=" in said
    assert "accumulate=" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), OSError(errno.ENOENT, "No such file")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, memory_watched("lower it."):
        raise error
    assert caught.value is error


def test_a_sentence_is_not_explained_twice() -> None:
    with pytest.raises(OutOfMemory, match=r"^there is too little memory \(MemoryError\): first\.$"), \
            memory_watched("second."), memory_watched("first."):  # fmt: skip
        raise MemoryError


@pytest.mark.full
def test_a_machine_that_really_has_too_little(tmp_path: Path) -> None:
    most = 7 << 29  # 3.5 GiB of addresses, of which torch's libraries take a good part
    changes = {"batch": 8192, "steps": 2, "evaluate_every": 0}
    done = subprocess.run(
        [sys.executable, "-m", "stepwell", "train", "fashion16", *words(tmp_path / "run", **changes)],
        capture_output=True,
        text=True,
        timeout=250,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("stepwell train: there is too little memory (")
    assert "Traceback" not in done.stderr

"""Ctrl-C, SIGTERM and a lost terminal, once and twice, at any moment of any command."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from train.small_runs import assert_same_run, newest_tensors, small_run, words

from stepwell.cli.main import main
from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan
from stepwell.train import checkpoint, loop


@pytest.fixture
def hearing() -> Any:
    """Tests that run in the background are born deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _at_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Do something in the middle of a step."""
    real = loop.train_step

    def step(training: Any, at: int) -> Any:
        if at == number:
            act()
        return real(training, at)

    monkeypatch.setattr(loop, "train_step", step)


def _send(*signals: signal.Signals) -> None:
    for each in signals:
        os.kill(os.getpid(), each)


@pytest.mark.usefixtures("hearing")
@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGINT, signal.SIGINT, signal.SIGTERM)],
    ids=lambda sent: "-".join(each.name for each in sent),
)
def test_the_step_is_saved_and_the_run_goes_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: tuple[signal.Signals, ...]
) -> None:
    """Several at once are one: a terminal and a launcher both send theirs."""
    with monkeypatch.context() as patch:
        _at_step(patch, 4, lambda: _send(*signals))
        at = run_plan(load("fashion16", words(tmp_path / "run")), say=lambda text: None)
    assert at.step == 5
    assert max(checkpoint.steps(tmp_path / "run/checkpoints")) == 5
    small_run(tmp_path / "run")
    assert_same_run(tmp_path / "run", small_run(tmp_path / "whole"))


@pytest.mark.usefixtures("hearing")
def test_a_second_ctrl_c_ends_the_step_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAME_SECONDS", 0.0)
    _at_step(monkeypatch, 4, lambda: _send(signal.SIGINT, signal.SIGINT))
    assert main(["train", "fashion16", *words(tmp_path / "run")]) == 130
    assert max(checkpoint.steps(tmp_path / "run/checkpoints")) == 3, "nothing before it is lost"


@pytest.mark.usefixtures("hearing")
def test_a_second_ctrl_c_does_not_disturb_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAME_SECONDS", 0.0)
    real = checkpoint.save_file

    def slow(*arguments: Any) -> None:
        _send(signal.SIGINT, signal.SIGINT, signal.SIGTERM)
        real(*arguments)
        _send(signal.SIGHUP)

    monkeypatch.setattr(checkpoint, "save_file", slow)
    said: list[str] = []
    at = run_plan(load("fashion16", words(tmp_path / "run")), say=said.append)
    # The first signal comes during the save of step 3, and is heard after the next step, which is saved too.
    assert at.step == 4
    assert "Stopped at step 4 and saved. Run the same command again to go on." in said
    assert newest_tensors(tmp_path / "run")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `nohup` asks for."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        _at_step(monkeypatch, 2, lambda: _send(signal.SIGHUP))
        assert run_plan(load("fashion16", words(tmp_path / "run", steps=4)), say=lambda text: None).step == 4
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_in_any_command_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*anything: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepwell.cli.show.chart.text", interrupted)
    assert main(["show", "logit-normal"]) == 130
    assert capsys.readouterr().err == "stepwell show: stopped.\n"


def _hearing() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.full
@pytest.mark.parametrize("verb", ["train", "generate", "evaluate", "analyze", "compare"])
def test_ctrl_c_at_random_moments_is_never_a_traceback(verb: str, tmp_path: Path) -> None:
    """From the first import on; what had nothing left to do may also end well."""
    run = small_run(tmp_path / "run", steps=2)
    long = ["steps=100000", "model=micro", "batch=4", "samples=0"]
    arguments = {
        "train": ["fashion16", *long, f"out={tmp_path / 'long'}"],
        "generate": [str(run), "--out", str(tmp_path / "images"), "-n", "100000"],
        "evaluate": [str(run)],
        "analyze": ["gain", str(run)],
        "compare": ["fashion16", "methods=uniform", *long, f"out={tmp_path / 'study'}"],
    }[verb]
    chance = random.Random(verb)
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-m", "stepwell", verb, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_hearing,
            start_new_session=True,
        )
        # Before about 0.1 s it is not yet our program that hears it.
        time.sleep(chance.uniform(0.2, 8))
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, said = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            # Python loses one that falls into a destructor or into some imports. People press again.
            os.killpg(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=100)
        # Python ends by the signal itself if it came inside of code that was compiled at run time.
        assert process.returncode in (0, 130, -signal.SIGINT)
        assert "Traceback" not in said
        assert process.returncode == 0 or "topped" in said or verb == "train", said

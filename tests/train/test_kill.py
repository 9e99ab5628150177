"""SIGKILL at any moment of any command that writes, and the same command again: as if it never happened."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest
import torch
from autoencoders import saved
from small_runs import assert_same_run, newest_tensors, small_run, words


class Made(NamedTuple):
    """What the commands read."""

    run: Path
    images: Path
    autoencoder: Path
    study: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    pixels = np.random.default_rng(0).integers(0, 256, (600, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", images=pixels)
    (folder / "quick.toml").write_text(
        'methods = ["uniform", "loss-ema"]\nworkloads = ["fashion16"]\n'
        "[effort]\ngenerated = 0\nbits_images = 2\nbits_timesteps = 2\n"
    )
    run = small_run(folder / "run", steps=3, labels=False)
    return Made(run, folder / "images.npz", saved("AutoencoderTiny", folder / "tiny"), folder / "quick.toml")


class Attempt(Protocol):
    """A command that is running."""

    def wait(self, seconds: float | None) -> int | None:
        """Its exit code, or None if it still runs after so many seconds."""
        ...

    def kill(self, chance: random.Random) -> None:
        """SIGKILL."""
        ...


def _command(arguments: list[str], environment: dict[str, str]) -> None:
    """In a process of its own."""
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    import torch

    from stepwell.cli.main import main

    torch.set_num_threads(1)
    sys.exit(main(arguments))


class Ranks:
    """A command in one process or several, from a fork server that imports once: every start is quick."""

    def __init__(self, arguments: list[str], world: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["stepwell.recipes.run", "stepwell.generate.job"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        self._processes: list[Any] = []
        for rank in range(world):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
            environment = {**shared, **own} if world > 1 else {}
            self._processes.append(context.Process(target=_command, args=(arguments, environment)))
            self._processes[-1].start()

    def wait(self, seconds: float | None) -> int | None:
        deadline = None if seconds is None else time.monotonic() + seconds
        for process in self._processes:
            process.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in self._processes]
        return None if None in codes else next((code for code in codes if code), 0)

    def kill(self, chance: random.Random) -> None:
        """One of them, or all at once; a launcher then ends the others."""
        if chance.random() < 0.5:
            os.kill(chance.choice(self._processes).pid or 0, signal.SIGKILL)
            time.sleep(chance.uniform(0, 1))
        for process in self._processes:
            process.kill()
            process.join()


class Session:
    """A command that starts processes of its own, which are all killed with it."""

    def __init__(self, arguments: list[str], world: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stepwell", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait(self, seconds: float | None) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self, chance: random.Random) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@dataclass(frozen=True)
class Target:
    """A command, how often it is killed (in test-all and at night), and what must be the same."""

    name: str
    kills: tuple[int, int]
    arguments: Callable[[Made, Path], list[str]]
    assert_same: Callable[[Path, Path], None]
    world: int = 1
    start: Callable[[list[str], int], Attempt] = Ranks


def _files(folder: Path) -> dict[str, bytes]:
    """All but what has the times of files in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".verified.json"
    }


def _same_files(a: Path, b: Path) -> None:
    assert _files(a) == _files(b)


def _same_run(a: Path, b: Path) -> None:
    assert_same_run(a / "run", b / "run")
    assert not [name for name in _files(b) if name.endswith(".tmp")]


def _same_study(a: Path, b: Path) -> None:
    for method in ("uniform", "loss-ema"):
        one, other = (folder / "study/fashion16" / method / "0" for folder in (a, b))
        assert_same_run(one, other)
        assert json.loads((one / "score.json").read_text()) == json.loads((other / "score.json").read_text())


# Checkpoints in every step: most kills fall into the writing of one.
_STEPS = {"steps": 20, "checkpoint_every": 1, "evaluate_every": 7}
_STUDY = [
    "model=micro",
    "batch=4",
    "steps=12",
    "samples=0",
    "evaluate_images=8",
    "evaluate_every=3",
    "bands=4",
]


def _train(made: Made, out: Path) -> list[str]:
    return ["train", "fashion16", *words(out / "run", **_STEPS)]


def _train_on_two(made: Made, out: Path) -> list[str]:
    probed = {"method": "neyman:every_steps=1,images=16,strata=2", "batch": 4, "dropout": 0.0}
    return ["train", "fashion16", *words(out / "run", **{**_STEPS, **probed, "steps": 12})]


def _compare(made: Made, out: Path) -> list[str]:
    return ["compare", str(made.study), *_STUDY, "checkpoint_every=2", "seeds=1", f"out={out / 'study'}"]


_IMAGES = ["-n", "160", "--steps", "10", "--batch", "8"]


def _array(made: Made, out: Path) -> list[str]:
    return ["generate", str(made.run), "--out", str(out / "a.npz"), *_IMAGES]


def _folder(made: Made, out: Path) -> list[str]:
    return ["generate", str(made.run), "--out", str(out / "a"), *_IMAGES]


def _encode(made: Made, out: Path) -> list[str]:
    options = ["--autoencoder", str(made.autoencoder), "--shard", "16", "--batch", "4"]
    return ["data", "encode", str(made.images), "--out", str(out / "latents"), *options]


def _export(made: Made, out: Path) -> list[str]:
    return ["export", str(made.run), "--out", str(out / "pipeline")]


TARGETS = [
    Target("train", (3, 60), _train, _same_run),
    Target("train-on-two-ranks", (1, 30), _train_on_two, _same_run, world=2),
    Target("compare", (1, 20), _compare, _same_study, start=Session),
    Target("generate", (2, 35), _array, _same_files),
    Target("generate-on-two-ranks", (0, 10), _folder, _same_files, world=2),
    Target("encode", (2, 20), _encode, _same_files),
    Target("encode-on-two-ranks", (0, 10), _encode, _same_files, world=2),
    Target("export", (1, 15), _export, _same_files),
]


def _killed_and_repeated(made: Made, target: Target, folder: Path, kills: int) -> int:
    """Kill a command so often, repeat it to its end, and compare; returns how many results were compared."""
    chance = random.Random(target.name)

    def start(out: Path) -> Attempt:
        out.mkdir(exist_ok=True)
        return target.start(target.arguments(made, out), target.world)

    if target.start is Ranks:
        # The fork server imports now, and not in the time that is measured.
        assert start(folder / "first").wait(None) == 0
    whole, started = folder / "whole", time.monotonic()
    assert start(whole).wait(None) == 0
    length = time.monotonic() - started
    broken, done, compared = folder / "broken", 0, 0
    while True:
        # It may have been killed after its last file, and `export` refuses a folder that is there.
        over = target.name == "export" and (broken / "pipeline").exists()
        attempt = None if over else start(broken)
        code = (
            0
            if attempt is None
            else attempt.wait(chance.uniform(0.05, 0.7) * length if done < kills else None)
        )
        if code is None and attempt is not None:
            attempt.kill(chance)
            done += 1
            continue
        assert code == 0, f"repeated after {done} kills, it failed with exit code {code}"
        target.assert_same(whole, broken)
        compared += 1
        if done >= kills:
            return compared
        # It came to its end between kills: start over.
        broken = folder / f"broken-{done}-{compared}"


def _cases(night: bool) -> list[Any]:
    chosen = [target for target in TARGETS if target.kills[night]]
    return [pytest.param(target, id=f"{target.name}-{target.kills[night]}") for target in chosen]


@pytest.mark.full
@pytest.mark.parametrize("target", _cases(night=False))
def test_ten_kills_leave_no_trace(made: Made, target: Target, tmp_path: Path) -> None:
    _killed_and_repeated(made, target, tmp_path, target.kills[0])


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", _cases(night=True))
def test_two_hundred_kills_leave_no_trace(made: Made, target: Target, tmp_path: Path) -> None:
    compared = _killed_and_repeated(made, target, tmp_path, target.kills[1])
    print(f"\n{target.name}: {target.kills[1]} kills, {compared} results the same as without")


def test_a_kill_in_the_middle_of_a_checkpoint_keeps_the_one_before(tmp_path: Path) -> None:
    small_run(tmp_path / "run", steps=3)
    half = tmp_path / "run" / "checkpoints" / ".step-000000006.safetensors.1234.tmp"
    half.write_bytes(b"half a file")
    small_run(tmp_path / "run")
    small_run(tmp_path / "whole")
    run, whole = newest_tensors(tmp_path / "run"), newest_tensors(tmp_path / "whole")
    assert all(torch.equal(run[name], whole[name]) for name in whole)
    assert not half.exists(), "it may be as large as a checkpoint"

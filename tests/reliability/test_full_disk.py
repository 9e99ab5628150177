"""A disk that is full, fills up or is read-only: one sentence, nothing half-written, and later it goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from autoencoders import saved
from train.small_runs import assert_same_run, small_run, words

from stepwell.cli.main import main

pytestmark = pytest.mark.full


class Disk:
    """A small file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.filler = path / "filler"

    def fill(self, leave: int = 0) -> None:
        """Until so many bytes are free."""
        with suppress(OSError), self.filler.open("wb") as stream:
            while True:
                stream.write(bytes(1 << 16))
                stream.flush()
        os.truncate(self.filler, max(0, self.filler.stat().st_size - leave))

    def read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)

    def names(self) -> set[str]:
        return {str(path.relative_to(self.path)) for path in self.path.rglob("*")}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a disk of its own needs root: {mounted.stderr.strip()}")
    yield Disk(place)
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("whole") / "run", samples=4, sample_steps=2, labels=False)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command says instead of working."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("state", ["full", "read-only"])
@pytest.mark.parametrize("steps", [0, 8])
def test_a_run_is_opened_or_resumed_when_there_is_room_again(
    disk: Disk, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str, steps: int
) -> None:
    out, settings = disk.path / "run", {"samples": 4, "sample_steps": 2, "labels": False}
    if steps:
        small_run(out, steps=steps, **settings)
    before = disk.names()
    disk.fill() if state == "full" else disk.read_only()
    said = refused(capsys, "train", "fashion16", *words(out, **settings))
    assert ("No space left" if state == "full" else "Read-only") in said
    assert {name for name in disk.names() - before if not (disk.path / name).is_dir()} <= {"filler"}
    if state == "read-only":
        subprocess.run(["mount", "-o", "remount,rw", str(disk.path)], check=True)
    disk.filler.unlink(missing_ok=True)
    assert main(["train", "fashion16", *words(out, **settings)]) == 0
    assert_same_run(out, run)


def test_a_disk_that_fills_during_training_keeps_the_last_checkpoint(
    disk: Disk, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, settings = disk.path / "run", {"samples": 4, "sample_steps": 2, "labels": False}
    small_run(out, steps=8, **settings)
    # Room for a few lines of metrics, and for no checkpoint.
    disk.fill(leave=1 << 17)
    said = refused(capsys, "train", "fashion16", *words(out, **settings))
    assert "could not write" in said
    assert {path.name for path in (out / "checkpoints").iterdir()} == {
        "step-000000006.safetensors", "step-000000008.safetensors"
    }  # fmt: skip
    disk.filler.unlink()
    assert main(["train", "fashion16", *words(out, **settings)]) == 0
    assert_same_run(out, run)


def test_a_disk_that_has_no_room_for_metrics_stops_training_with_a_sentence(
    disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.fill(leave=1 << 16)
    changes = {"checkpoint_every": 10**6, "evaluate_every": 0, "steps": 2000, "batch": 1}
    said = refused(capsys, "train", "fashion16", *words(disk.path / "run", **changes))
    assert "metrics.jsonl (No space left on device), so training stopped" in said


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("images")
    np.savez(folder / "a.npz", images=np.zeros((40, 16, 16, 3), np.uint8))
    return [str(folder / "a.npz"), "--autoencoder", str(saved("AutoencoderTiny", folder / "tiny"))]


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_everything_else_that_writes_leaves_nothing(
    disk: Disk, run: Path, encoding: list[str], capsys: pytest.CaptureFixture[str], state: str
) -> None:
    images = ["-n", "4", "--steps", "2"]
    commands = {
        "report.html": ["report", str(run), "--out"],
        "grids.png": ["report", str(run), "--out", os.devnull, "--grids"],
        "figure.png": ["show", "logit-normal", "--save"],
        "own.toml": ["cp", "fashion16"],
        "list.json": ["table", "logit-normal", "-p", "flow", "-f", "json", "-o"],
        "pipeline": ["export", str(run), "--out"],
        "sheet.png": ["generate", str(run), *images, "--out"],
        "images.npz": ["generate", str(run), *images, "--out"],
        "folder": ["generate", str(run), *images, "--out"],
        "latents": ["data", "encode", *encoding, "--out"],
    }
    disk.fill() if state == "full" else disk.read_only()
    before = disk.names()
    for name, command in commands.items():
        said = refused(capsys, *command, str(disk.path / name))
        assert name in said
    # Folders may be made before the first file in them is refused, and rows of an .npz be reserved.
    files = {name for name in disk.names() - before if not (disk.path / name).is_dir()}
    assert files <= {"images.npz.rows.npy", "images.npz.generation.json"}

"""`stepwell generate` and `export`, as a user types them; alone and under torchrun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stepwell.cli.main import main

SMALL = ["model=micro", "steps=2", "batch=8", "evaluate_every=2", "evaluate_images=4", "bands=4",
         "checkpoint_every=2", "samples=0", "labels=true", "solver=heun", "sample_steps=3"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "fashion16", *SMALL, f"out={out}"]) == 0
    return out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_defaults_are_the_recipes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "folder"
    assert main(["generate", str(run), "--out", str(out), "-n", "3"]) == 0
    assert f"Wrote 3 images to {out}" in capsys.readouterr().out
    made_by = json.loads((out / "generation.json").read_text())
    assert (made_by["solver"], made_by["steps"], made_by["labels"]) == ("heun", 3, list(range(10)))
    assert main(["generate", str(run), "--out", str(out), "-n", "3"]) == 0
    assert "3 of them were there already" in capsys.readouterr().out
    assert "weights was" in refused(capsys, "generate", str(run), "--out", str(out), "-n", "3", "--raw")


def test_a_dry_run_says_what_it_takes_and_writes_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(run), "--out", str(tmp_path / "x"), "-n", "50000", "--dry-run"]
    assert main([*words, "--batch", "4"]) == 0
    said = capsys.readouterr().out
    assert "50,000 images of 1x16x16" in said
    assert "5 network evaluations an image, 250,000 in all" in said
    assert "for a batch of 4" in said
    assert main([*words, "--batch", "4", "--solver", "unipc", "--guidance", "2"]) == 0
    said = capsys.readouterr().out
    assert "unipc" in said
    assert "25 steps" in said
    assert "50 network evaluations an image" in said
    assert main([*words, "--batch", "4", "--solver", "ddpm"]) == 0
    assert "1,000 network evaluations an image" in capsys.readouterr().out
    assert not (tmp_path / "x").exists()


def test_every_option_that_cannot_work(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in {
        ("--solver", "runge"): "is not a known solver",
        ("--solver", "euler"): "use ddim, ddpm, heun, dpm-solver++, unipc",
        ("--steps", "0"): "steps must be a whole number of at least 1",
        ("--steps", "1001"): "more than the process's 1000 timesteps",
        ("--steps", "1"): "2 steps or more",
        ("--labels", "a,b"): "'a' is no class. Write numbers such as 0,1,2, or names of classes (t-shirt, ",
        ("--labels", "10"): "labels run from 0 to 9, not 10",
        ("--guidance", "-1"): "guidance must be 0 or more",
        ("--eta", "0.5"): "eta is DDIM's noise",
        ("--solver", "ddim", "--eta", "2"): "eta must lie between 0 and 1",
        ("--batch", "0"): "batch must be a whole number",
        ("-n", "0"): "count must be a whole number",
    }.items():
        assert said in refused(capsys, "generate", str(run), "--out", str(tmp_path / "x"), *words)
    assert not (tmp_path / "x").exists()
    sheet = refused(capsys, "generate", str(run), "--out", str(tmp_path / "x.png"), "-n", "5000")
    assert "write a folder or an .npz instead" in sheet
    (tmp_path / "file").write_bytes(b"")
    assert "cannot write" in refused(capsys, "generate", str(run), "--out", str(tmp_path / "file" / "a.npz"))


def test_classes_go_by_name(run: Path, tmp_path: Path) -> None:
    words = ["generate", str(run), "-n", "4", "--steps", "2"]
    for labels in ("Bag,0", "8,0", "0,8"):
        assert main([*words, "--labels", labels, "--out", str(tmp_path / f"{labels}.npz")]) == 0
    named, numbered, other = (
        np.load(tmp_path / f"{labels}.npz")["images"] for labels in ("Bag,0", "8,0", "0,8")
    )
    assert (named == numbered).all()
    assert (named != other).any()
    assert json.loads((run / "environment.json").read_text())["class_names"][8] == "bag"


def test_a_network_with_classes_is_exported_with_their_names(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "pipeline")]) == 0
    text = capsys.readouterr().out
    assert "UNet2DModel.from_pretrained" in text
    assert "8 bag" in text
    assert "has no adapters" in refused(capsys, "export", str(run), "--adapters")
    (tmp_path / "file").write_bytes(b"")
    assert "is not empty" in refused(capsys, "export", str(run), "--out", str(tmp_path / "file"))


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from stepwell.cli.main import main
from stepwell.core.ranks import ranks
run, out = sys.argv[1:]
with ranks():
    for name in ("folder", "images.npz"):
        assert main(["generate", run, "--out", f"{out}/{name}", "-n", "11", "--batch", "2"]) == 0
    assert main(["generate", run, "--out", f"{out}/sheet.png"]) == 2
"""


@pytest.mark.full
@pytest.mark.timeout(300)
def test_two_processes_write_the_same_bytes_as_one(run: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}"]
    together = tmp_path / "together"
    done = subprocess.run(
        [*launch, str(tmp_path / "script.py"), str(run), str(together)],
        capture_output=True, text=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "by 2 processes" in done.stdout
    assert "a sheet is made by one process" in done.stderr
    alone = tmp_path / "alone"
    for name in ("folder", "images.npz"):
        assert main(["generate", str(run), "--out", str(alone / name), "-n", "11", "--batch", "2"]) == 0
    one, two = (
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (alone, together)
    )
    assert len(one) == 11 + 1 + 2, "images, their record, the array and its record"
    assert one == two
    with np.load(together / "images.npz") as found:
        assert found["images"].shape == (11, 16, 16, 1)
        assert found["labels"].tolist() == [*range(10), 0]


def test_an_earlier_checkpoint_makes_other_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, pictures = tmp_path / "run", {}
    assert main(["train", "fashion16", *SMALL, "steps=4", "lr=0.1", f"out={out}"]) == 0
    for step in ("2", "4"):
        words = ["generate", str(out), "--out", str(tmp_path / f"{step}.npz"), "-n", "2"]
        assert main([*words, "--checkpoint", step]) == 0
        pictures[step] = np.load(tmp_path / f"{step}.npz")["images"]
    assert not np.array_equal(pictures["2"], pictures["4"])
    said = refused(capsys, "generate", str(out), "--out", str(tmp_path / "x.npz"), "--checkpoint", "3")
    assert "no checkpoint of step 3: those kept are 2, 4" in said

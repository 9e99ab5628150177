"""`stepwell evaluate IMAGES REFERENCE`, as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepwell.cli.main import main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STEPWELL_INCEPTION", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def sets(tmp_path: Path) -> tuple[str, str]:
    """600 grey images as an .npz, and 500 others as a folder."""
    drawn = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", images=drawn.integers(0, 256, (600, 16, 16), dtype=np.uint8))
    folder = tmp_path / "b"
    folder.mkdir()
    for row, image in enumerate(drawn.integers(0, 200, (500, 16, 16), dtype=np.uint8)):
        Image.fromarray(image).save(folder / f"{row:04d}.png")
    return str(tmp_path / "a.npz"), str(folder)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["evaluate", *words]) == 2
    return capsys.readouterr().err


def test_two_sets_are_compared_and_the_number_is_not_called_fid(
    sets: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *sets, "--extractor", "fashion16"]) == 0
    text = capsys.readouterr().out
    for part in ("600 images", "500 images", "Fréchet distance on fashion16 features (not FID):", "(not KID)",
                 "precision", "recall", "extractor: fashion16"):  # fmt: skip
        assert part in text
    assert "\n  FID" not in text


def test_json_is_the_same_for_statistics_kept_before(
    sets: tuple[str, str], cache: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--extractor", "fashion16", "--json"]
    assert main(["evaluate", *sets, *words]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["fid"] is None
    assert first["frechet_distance"] > 0
    assert first["kernel_distance_standard_error"] > 0
    assert (first["images"], first["reference_images"]) == (600, 500)
    folder = next(path for path in (cache / "features").iterdir()
                  if json.loads((path / "about.json").read_text())["count"] == 500)  # fmt: skip
    assert main(["evaluate", sets[0], str(folder / "statistics.npz"), *words]) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["frechet_distance"] == first["frechet_distance"]
    assert second["precision"] is None
    error = refused(capsys, sets[0], str(folder / "statistics.npz"), *words, "--resize", "legacy")
    assert "another extractor" in error


def test_count_takes_so_many_of_each(sets: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *sets, "--extractor", "fashion16", "-n", "50"]) == 0
    text = capsys.readouterr().out
    assert text.count("(50 images)") == 2
    assert "too few for 64 dimensions" in text


def test_mistakes_are_told_in_one_line(
    sets: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fashion = ("--extractor", "fashion16")
    assert "Did you mean 'inception'" in refused(capsys, *sets, "--extractor", "inseption")
    assert "there is no" in refused(capsys, sets[0], str(tmp_path / "nothing"), *fashion)
    assert "--weights is" in refused(capsys, *sets, "--weights", str(tmp_path / "w.pth"))
    assert "--batch must be" in refused(capsys, *sets, *fashion, "--batch", "0")
    assert "-n must be" in refused(capsys, *sets, *fashion, "-n", "0")
    assert "belong to a run" in refused(capsys, *sets, *fashion, "--raw")
    assert "is not a run" in refused(capsys, sets[1])
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.json").write_text("{}")
    error = refused(capsys, str(run), sets[1])
    assert f"stepwell generate {run}" in error
    assert f"stepwell evaluate images.npz {sets[1]}" in error
    assert "name a REFERENCE" in refused(capsys, str(run), "--resize", "clean")


def test_a_run_as_reference_stands_for_its_training_images(
    sets: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.json").write_text(json.dumps({"data": sets[1], "size": None, "channels": None}))
    assert main(["evaluate", sets[0], str(run), "--extractor", "fashion16"]) == 0
    assert "(450 images)" in capsys.readouterr().out, "a tenth is held out"


@pytest.mark.full
@pytest.mark.timeout(240)
def test_two_processes_print_once_and_the_same_numbers(
    sets: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", *sets, "--extractor", "fashion16", "--json"]
    assert main(words) == 0
    alone = json.loads(capsys.readouterr().out)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, "-m", "stepwell", *words],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"STEPWELL_CACHE": str(tmp_path / "other"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == alone

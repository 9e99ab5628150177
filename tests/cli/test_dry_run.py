"""`stepwell train --dry-run`, as a user types it before there are data or a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepwell.cli.main import main
from stepwell.recipes import dry_run
from stepwell.recipes.dry_run import duration
from stepwell.recipes.load import load
from stepwell.recipes.schema import BadRecipe

SMALL = ["model=micro", "steps=4", "batch=8", "size=16", "channels=1"]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["train", *words, "--dry-run"]) == 0
    return capsys.readouterr().out


def test_without_data_all_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "cifar10-ddpm", "model=micro", "method=neyman")
    assert "data               = 'PATH'" in text
    assert re.search(r"micro: [\d,]+ parameters, examples 3x32x32", text)
    assert "128,000,000 images seen" in text
    assert "for the probe of neyman" in text
    for part in ("weights", "gradients", "Adam", "EMA", "activations"):
        assert part in text
    for name in ("A100-80GB", "H100-80GB", "RTX 4090", "RTX 3090"):
        assert f"  {name}" in text
    assert "50,000 images by ddpm, 1000 evaluations each" in text
    assert text.rstrip().endswith("data=PATH are not here: nothing was measured, all of this is counted.")


def test_a_network_for_a_cluster_is_not_allocated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # 501 million parameters: 2 GB in float32.
    before = _resident()
    text = said(capsys, "imagenet256-uvit", "model=uvit-h", "data=" + str(tmp_path / "later"))
    assert re.search(r"uvit-h: 50\d,\d{3},\d{3} parameters, examples 4x32x32", text)
    assert _resident() - before < 1e9


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_with_data_a_few_steps_are_timed_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "fashion16", *SMALL[:3], f"out={tmp_path / 'x'}")
    assert "times the data's 12,000" in text
    assert "steps a second here: about" in text
    assert not (tmp_path / "x").exists()


def test_what_is_for_a_gpu_is_not_tried_on_a_laptop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dry_run, "_MOST_ON_CPU", 1.0)
    monkeypatch.setattr(dry_run, "on_cpu", lambda: True)
    text = said(capsys, "fashion16", *SMALL[:3])
    assert "Not measured here" in text
    assert "steps a second here" not in text


def test_processes_share_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    text = said(capsys, "images", *SMALL)
    assert "4 steps of 32" in text
    assert "on 4 processes" in text


def test_only_the_missing_data_are_forgiven(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        BadRecipe, match=r"1 mistake in cifar10-ddpm.toml with lr=-1:\n  - lr must be above 0"
    ):
        load("cifar10-ddpm", ["lr=-1"], data_needed=False)
    assert load("cifar10-ddpm", data_needed=False).recipe.data == "PATH"
    assert main(["train", "images", "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert "give size=N channels=C" in error
    assert "Traceback" not in error


def test_durations() -> None:
    assert duration(59) == "0 min 59 s"
    assert duration(3600 * 5 + 61) == "5 h 1 min"

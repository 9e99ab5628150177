"""The first hour of a newcomer (newcomer.py), much shortened: every command succeeds, and speaks early."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
from newcomer import first_hour
from PIL import Image

SHORT = ["model=micro", "steps=4", "batch=4", "samples=4", "sample_steps=2",
         "evaluate_images=4", "evaluate_every=2"]  # fmt: skip


def mixed_photographs(folder: Path, count: int) -> Path:
    """Pictures of several sizes, modes and formats, and files that are none."""
    folder.mkdir()
    for number in range(count):
        size = [(40, 40), (64, 48), (33, 50)][number % 3]
        picture = Image.effect_mandelbrot(size, (-2, -1.5, 1 + number / count, 1.5), 20).convert("RGB")
        mode, ending = [("RGB", "jpg"), ("L", "png"), ("RGBA", "png"), ("RGB", "webp")][number % 4]
        picture.convert(mode).save(folder / f"{number:03d}.{ending}")
    (folder / "readme.txt").write_text("my photographs")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    return folder


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_first_hour_on_a_folder_of_photographs(tmp_path: Path) -> None:
    photos = mixed_photographs(tmp_path / "photos", 60)
    told = first_hour(photos, tmp_path / "out", SHORT, seeds=1)
    skipped = "skipped 2 of 62 files that are not readable images"
    assert all(skipped in told[name].text for name in ("data", "train", "tune"))
    assert "Resumed at step 4" in told["resume"].text
    assert "Wrote 16 images" in told["generate"].text
    assert "a verdict needs at least 3" in told["compare"].text
    assert "LoRA adapters of rank 4" in told["tune"].text
    out = tmp_path / "out"
    for page in ("watch.html", "study.html", "run.html"):
        assert "<svg" in (out / page).read_text(), page
    assert (out / "pipeline" / "unet").is_dir()
    assert (out / "adapters" / "adapter_config.json").is_file()
    assert median(one.first_word for one in told.values()) < _seconds_of_importing_torch()


def _seconds_of_importing_torch() -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - started

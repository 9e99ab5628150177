"""Sheets side by side: every method's images are in the picture, unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compare.made_runs import write_run
from PIL import Image

from stepwell.cli.main import main

COLOURS = {"uniform": (200, 10, 10), "min-snr": (10, 200, 10), "neyman": (10, 10, 200)}


def test_every_method_has_its_sheet(tmp_path: Path) -> None:
    for method, colour in COLOURS.items():
        run = write_run(tmp_path / "runs" / method, [4, 3, 2, 1, 0.5], method)
        (run / "samples").mkdir()
        Image.new("RGB", (40, 30), colour).save(run / "samples/step-000000040.png")
    out, picture = tmp_path / "report.html", tmp_path / "grids.png"
    assert main(["report", str(tmp_path / "runs"), "--out", str(out), "--grids", str(picture)]) == 0
    pixels = np.asarray(Image.open(picture)).reshape(-1, 3)
    for colour in COLOURS.values():
        assert (pixels == colour).all(1).sum() == 40 * 30


def test_records_without_images_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs/uniform", [4, 3, 2, 1, 0.5])
    page, picture = str(tmp_path / "r.html"), str(tmp_path / "g.png")
    assert main(["report", str(tmp_path / "runs"), "--out", page, "--grids", picture]) == 2
    assert "samples=64" in capsys.readouterr().err

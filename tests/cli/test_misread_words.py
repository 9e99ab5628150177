"""Words and files that were accepted as something else, crashed or never ended: each has its sentence."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepwell.catalogue.spec import literal
from stepwell.cli.main import main
from stepwell.core.errors import StepwellError
from stepwell.data.load import load


@pytest.mark.parametrize("name", ["2024_01_15", "1e3", "0x10", "true", "none"])
def test_a_folder_is_called_as_it_is_written(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fashion16", f"out={name}", f"data={name}", "--settings"]) == 0
    text = capsys.readouterr().out
    assert f"out                = {name!r}" in text
    assert f"data               = {name!r}" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "fashion16", "method=speed", "--dry-run"), "write methods=A,B"),
        (("compare", "fashion16", "seed=7", "--dry-run"), "write seeds=3"),
        (("compare", "fashion16", "seeds=1000000", "--dry-run"), "at most 10,000"),
        (("show", "uniform", "unbiased=no"), "unbiased must be true or false, not 'no'"),
        (("show", "logit-normal", "as_published=no"), "must be true or false"),
        (("train", "fashion16", "labels=yes", "--settings"), "labels must be true or false"),
        (("train", "fashion16", "lr=1e999", "--settings"), "lr must be a finite number"),
        (("train", "fashion16", f"lr={'9' * 400}", "--settings"), "lr must be a finite number"),
        (("train", "fashion16", "bands=1000000", "--settings"), "bands must be at most 2,000"),
        (
            ("train", "fashion16", "method=neyman:strata=99999999", "--settings"),
            "strata must be at most 2,000",
        ),
        (("show", "beta", "alpha=1e308"), "no density that floats can hold"),
        (("show", "uniform", "name=3"), "is not a known parameter"),
        (("show", ""), "nothing is named"),
        (
            ("show", "uniform", "-p", "vp:beta_max=9223372036854775807"),
            "beta_max must be above 0 and at most",
        ),
        (("show", "uniform", "-p", "flow:shift=18446744073709551616"), "shift must be above 0 and at most"),
        (("data", "show", "~nosuchuser"), "there is no such user"),
        (("data", "show", "a" * 300), "File name too long"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{[]:1}", "-" * 3000 + "1", "1if", "b'x'", "1j", "...", "[" * 3000])
def test_python_that_is_no_value_is_text(text: str) -> None:
    assert literal(text) == text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[samplr]\nname = 'speed'\n", "a method file has [sampler] and [weighting] only"),
        (b"[sampler]\nmean = 1.0\n", "needs a line such as name"),
        ("[sampler]\nname = 'speed'\n".encode("utf-16"), "is not UTF-8 text"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"[sampler]\nname = 'logit-normal'\nmean = nan\n", "must be a finite number"),
    ],
)
def test_a_method_file_that_is_none_is_refused(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    assert main(["train", "fashion16", f"method={tmp_path / 'mine.toml'}", "--settings"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("methods = ['uniform']\n", "a study needs a workload"),
        ("methods = ['uniform']\nworkloads = ['fashion16']\ntune = 5\n", "tune needs at least two"),
        ("methods = 5\nworkloads = ['fashion16']\n", "methods must be names"),
    ],
)
def test_a_study_that_is_none_is_refused(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(content)
    assert main(["compare", str(tmp_path / "mine.toml"), "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def pictures(folder: Path, count: int = 4) -> None:
    folder.mkdir(parents=True)
    for row in range(count):
        Image.new("L", (8, 8), row).save(folder / f"{row}.png")


def test_a_pipe_among_images_is_passed_over(tmp_path: Path) -> None:
    pictures(tmp_path / "photos")
    os.mkfifo(tmp_path / "photos" / "pipe.png")
    data = load(str(tmp_path / "photos"))
    assert "pipe.png (a pipe or a device)" in data.notes[0]


def test_folders_that_link_to_each_other_are_read_once(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        pictures(tmp_path / "photos" / one)
        for number in range(2):
            (tmp_path / "photos" / one / f"link{number}").symlink_to(f"../{other}")
    data = load(str(tmp_path / "photos"))
    assert len(data.train) + len(data.held_out) == 8


def test_sizes_are_looked_at_before_anything_is_inflated(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", images=np.zeros((100, 1024, 1024), np.uint8))
    with pytest.raises(StepwellError, match=r"would grow from .* more than 200 times"):
        load(str(tmp_path / "bomb.npz"))
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (9999999, 9999, 99), }"
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(StepwellError, match=r"announces .* and has 0"):
        load(str(tmp_path / "lies.npz"))
    pictures(tmp_path / "photos")
    Image.new("1", (12_000, 12_000)).save(tmp_path / "photos" / "large.png")
    assert "large.png (more than 80 million pixels" in load(str(tmp_path / "photos")).notes[0]


def test_a_pipe_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "log.csv")
    assert main(["fit", str(tmp_path / "log.csv")]) == 2
    assert "is a pipe or a device" in capsys.readouterr().err

"""Errors for data that do not exist or cannot be read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepwell.core.errors import InvalidParameter, StepwellError, Unsupported
from stepwell.data.load import load
from stepwell.data.source import BadData


def test_unknown_names_get_the_nearest_one() -> None:
    with pytest.raises(BadData, match=r"'fashoin16' not found.*\(fashion16\).*Did you mean 'fashion16'\?"):
        load("fashoin16")


def test_paths_that_do_not_exist_say_where_was_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flowers").mkdir()
    with pytest.raises(BadData, match=r"no file or folder at '.*/flower'.*Did you mean '.*/flowers'\?"):
        load(str(tmp_path / "flower"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadData, match=r"Did you mean 'flowers'\?"):
        load("flower")
    with pytest.raises(BadData, match="no file or folder at"):
        load("no/such/thing/anywhere")
    with pytest.raises(BadData, match="data '' not found"):
        load("")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    with pytest.raises(BadData, match="mine has no files"):
        load("~/mine")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar.tar.gz").write_bytes(b"")
    with pytest.raises(BadData, match=r"is a file that is not .npz: give the folder"):
        load(str(tmp_path / "cifar.tar.gz"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be a whole number"),
        ({"channels": 4}, r"channels must be 1 \(grey\) or 3 \(colour\), not 4"),
        ({"workers": 0}, "workers must be a whole number"),
        ({"memory_bytes": -1}, "memory_bytes must be a whole number"),
    ],
)
def test_options_that_cannot_work(options: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        load("fashion16", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("module", "package"), [("PIL", "Pillow"), ("numpy", "numpy")])
def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, module: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Unsupported, match=rf"needs {package}, .* pip install 'stepwell\[train\]'"):
        load("fashion16")


def test_bad_data_is_one_of_ours() -> None:
    assert issubclass(BadData, StepwellError)
    assert issubclass(BadData, ValueError)

"""Records for others name no place of the machine that made them."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from stepwell.runs.directory import environment
from stepwell.runs.portable import places, portable, portable_environment


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/tmp/exp2/table1.toml", "table1.toml"),
        ("data=/tmp/flowers-latents", "data=flowers-latents"),
        ("from=/home/ann/runs/base/", "from=base"),
        ("~/photos", "photos"),
        (r"data=C:\Users\ann\photos", "data=photos"),
        ("steps=3 data=/a/b,/c/d;", "steps=3 data=b,d;"),
    ],
)
def test_absolute_paths_are_cut_to_their_names(text: str, wanted: str) -> None:
    assert places(text)
    assert portable({"some": [text]}) == {"some": [wanted]}
    assert not places(wanted)


@pytest.mark.parametrize(
    "text",
    [
        "data=runs/flowers-latents",
        "linear/neyman/0",
        "r / (1 + x)",
        "images/s",
        "0.84 (0.82 to 0.85)",
        "p2:k=1",
    ],
)
def test_nothing_else_changes(text: str) -> None:
    assert portable(text) == text
    assert places(text) == []


def test_output_folders_are_places_too_and_leave_the_command() -> None:
    assert places("stepwell compare table1 out=runs/a") == ["out=runs/a"]
    assert places("stepwell data encode x --out latents") == ["--out latents"]
    made = {"command": ["stepwell", "compare", "t", "out=x", "--out", "y", "--out=z", "seeds=3"], "cores": 2}
    assert portable_environment(made) == {"command": ["stepwell", "compare", "t", "seeds=3"], "cores": 2}
    assert portable_environment({"cores": 2}) == {"cores": 2}


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        ("/opt/python/lib/stepwell/__main__.py", ["stepwell"]),
        ("/opt/venv/bin/stepwell", ["stepwell"]),
        ("benchmarks/studies.py", ["python", "benchmarks/studies.py"]),
        ("/opt/scripts/train.py", ["python", "train.py"]),
        ("/usr/bin/torchrun", ["torchrun"]),
    ],
)
def test_a_command_can_be_typed_as_it_stands(started: str, typed: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", [started, "table1", "seeds=3"])
    assert environment()["command"] == [*typed, "table1", "seeds=3"]

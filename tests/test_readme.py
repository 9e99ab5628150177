"""The README is run: its Python in order, its commands one by one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stepwell.cli.main import main

QUICK = {
    "train": ["model=micro", "steps=2", "batch=4", "evaluate_images=4", "bands=4", "samples=0"],
    "generate": ["-n", "4", "--steps", "2"],
    "evaluate": ["-n", "0"],
    "evaluate two sets": ["-n", "4"],
    "compare": [
        *("model=micro", "steps=2", "batch=4", "evaluate_images=4", "bands=4", "samples=0"),
        "effort={'generated': 0, 'bits_images': 2, 'bits_timesteps': 2}",
    ],
}
"""Added to commands that would take minutes."""

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_python_snippets_run_in_order() -> None:
    snippets = blocks("python")
    assert len(snippets) >= 2
    scope: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), scope)
    assert tuple(scope["weight"].shape) == (64,)  # type: ignore[attr-defined]


def test_commands_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    lines = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) >= 7
    for line in lines:
        words = shlex.split(line.replace("/tmp/", f"{tmp_path}/").replace("runs/", f"{tmp_path}/"))
        assert words[0] == "stepwell"
        two_sets = words[1] == "evaluate" and len(words) > 3 and not words[3].startswith("-")
        quick = QUICK.get("evaluate two sets" if two_sets else words[1], [])
        assert main(words[1:] + quick) == 0, line


def test_files_and_folders_that_it_names_exist() -> None:
    for path in re.findall(r"`((?:src|docs|benchmarks)[\w/.]*)`", README):
        assert (Path(__file__).parent.parent / path).exists(), path

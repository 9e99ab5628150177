"""Every snippet of the README and of every page is run: Python in order within a page, commands line by line.

What is not meant to be run stands in another fence: text, diff, toml.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pages import DOCS, PAGES, ROOT, blocks

from stepwell.cli.main import main

README = ROOT / "README.md"
TRAINING = ["model=micro", "steps=2", "batch=4", "evaluate_images=4", "bands=4", "samples=0"]
PROBING = ["--strata", "3", "--rounds", "3", "--images", "2"]
QUICK = {
    "train": TRAINING,
    "generate": ["-n", "4", "--steps", "2"],
    "evaluate": ["-n", "0"],
    "evaluate two sets": ["-n", "4"],
    "compare": [*TRAINING, "generated=0", "bits_images=2", "bits_timesteps=2"],
    "analyze gain": PROBING,
    "analyze variance": PROBING,
}
"""Added to commands that would take minutes."""
FENCES = {"python", "sh", "text", "diff", "toml", "math", "json", "yaml", "console", ""}


def having(language: str) -> list[Path]:
    return [path for path in (README, *PAGES) if blocks(path.read_text(), language)]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT if path == README else DOCS))


@pytest.mark.parametrize("path", having("python"), ids=named)
def test_python_snippets_run_in_order(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "__main__"}
    for snippet in blocks(path.read_text(), "python"):
        exec(compile(snippet, named(path), "exec"), scope)
    if path == README:
        assert tuple(scope["weight"].shape) == (64,)  # type: ignore[attr-defined]


@pytest.mark.full
@pytest.mark.timeout(900)  # a busy machine takes its time
@pytest.mark.parametrize("path", having("sh"), ids=named)
def test_commands_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for block in blocks(path.read_text(), "sh"):
        for line in block.splitlines():
            # One seed has no verdict, and shows as well that the command works.
            words = ["seeds=1" if "seeds=" in word else word for word in shlex.split(line, comments=True)]
            words = [word.replace("/tmp/", f"{tmp_path}/") for word in words]
            if words:
                assert words[0] == "stepwell", f"{line}: only our own commands are run; use another fence"
                assert main([*words[1:], *quick(words)]) == 0, line


def quick(words: list[str]) -> list[str]:
    """What makes a command small."""
    if "--dry-run" in words:
        return []
    if words[1] == "evaluate" and len(words) > 3 and not words[3].startswith("-"):
        return QUICK["evaluate two sets"]
    return QUICK.get(" ".join(words[1:3]), QUICK.get(words[1], []))


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_only_fences_that_mean_something_are_used(path: Path) -> None:
    opened = [line.strip().removeprefix("```") for line in path.read_text().splitlines() if "```" in line]
    assert {word.split(" ")[0] for word in opened} <= FENCES


def test_files_and_folders_that_the_readme_names_exist() -> None:
    for path in re.findall(r"`((?:src|docs|benchmarks)[\w/.]*)`", README.read_text()):
        assert (ROOT / path).exists(), path


OUR_PAGES = (README, ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md"), *(DOCS / "decisions").glob("*.md"))


@pytest.mark.parametrize("path", OUR_PAGES, ids=lambda path: path.name)
def test_python_files_that_pages_name_exist(path: Path) -> None:
    """As `train/step.py`, below the package or the repository; NAME stands for a new one."""
    for name in re.findall(r"`(\w+/[\w/]+\.py)`", path.read_text()):
        assert "NAME" in name or any((root / name).is_file() for root in (ROOT / "src/stepwell", ROOT)), name

"""The shipped recipes, by name. Plain paths: listing them imports nothing."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

_HERE = Path(__file__).parent


def workload_files() -> dict[str, Path]:
    """Data, network and training settings."""
    return {path.stem: path for path in sorted((_HERE / "workloads").glob("*.toml"))}


def method_files() -> dict[str, Path]:
    """Combinations of sampler and weighting that a paper names."""
    return {path.stem: path for path in sorted((_HERE / "methods").glob("*.toml"))}


def study_files() -> dict[str, Path]:
    """Comparisons: workloads, methods and seeds."""
    return {path.stem: path for path in sorted((_HERE / "studies").glob("*.toml"))}


def first_words(path: Path) -> str:
    """The sentence a recipe file opens with: the last comment line before the settings."""
    opening = list(takewhile(lambda line: line.startswith("#"), path.read_text().splitlines()))
    return opening[-1][1:].strip() if opening else ""

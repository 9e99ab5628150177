"""Real data and weights for tests, where a developer has them; never part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("STEPWELL_ASSETS", Path(__file__).parents[2] / "shared" / "assets"))


def asset(name: str) -> Path:
    """The file of this name, or the end of the test with the reason."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} is not in {FOLDER} (set STEPWELL_ASSETS)")
    return path

"""Parameters of tests that `make test` has, and those that only `make test-all` has."""

from __future__ import annotations

from typing import Any

import pytest

OF_FLOWS = ("bsmntw", "linear-sigma")
"""Weightings that only a flow has."""


def case(*values: Any, quick: bool, id: str | None = None) -> Any:
    """One set of parameters; `full` if it is not quick."""
    return pytest.param(*values, id=id, marks=() if quick else pytest.mark.full)

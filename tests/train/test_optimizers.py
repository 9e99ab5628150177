"""Every optimizer by name trains, and resumes exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import assert_same_run, small_run

from stepwell.core.errors import StepwellError
from stepwell.recipes.load import load
from stepwell.train.optimizers import OPTIMIZERS, missing_package


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_resumes_exactly(name: str, tmp_path: Path) -> None:
    if missing_package(name):
        pytest.skip(f"{missing_package(name)} is not installed")
    small_run(tmp_path / "whole", optimizer=name, steps=6)
    small_run(tmp_path / "parts", optimizer=name, steps=4)
    small_run(tmp_path / "parts", optimizer=name, steps=6)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.train.optimizers.find_spec", lambda name: None)
    with pytest.raises(StepwellError, match=r"optimizer=lion needs.*pip install lion-pytorch"):
        load("fashion16", ["optimizer=lion"])

"""Launches that would split the network end with one sentence, before any work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.core.errors import Unsupported
from stepwell.recipes.run import refuse_other_sharding


@pytest.mark.full
def test_fsdp_is_refused_and_the_way_out_is_said(tmp_path: Path) -> None:
    # A process of its own, as accelerate's launcher starts it: an earlier Accelerator would hide the failure.
    words = ["train", "fashion16", "model=micro", "steps=1", f"out={tmp_path / 'run'}"]
    environment = {**os.environ, "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "stepwell", *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "asks for FSDP" in done.stderr
    assert "docs/scale.md" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_only_what_is_asked_for_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_other_sharding()
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "false")
    refuse_other_sharding()
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    with pytest.raises(Unsupported, match="splits networks itself"):
        refuse_other_sharding()

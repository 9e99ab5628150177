"""Launches that would split the network end with one sentence, before any work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from accelerate.utils import DistributedType

from stepwell.cli.main import main
from stepwell.core.errors import Unsupported
from stepwell.recipes.launch import require_whole_networks


def test_fsdp_is_refused_and_the_way_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert main(["train", "fashion16", "model=micro", "steps=1", f"out={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert "asks for FSDP" in error
    assert "docs/scale.md" in error
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", list(DistributedType))
def test_what_accelerate_calls_it_counts_too(kind: DistributedType) -> None:
    accelerator = SimpleNamespace(distributed_type=kind)
    if kind.name in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        with pytest.raises(Unsupported, match=kind.name):
            require_whole_networks(accelerator)  # type: ignore[arg-type]
    else:
        require_whole_networks(accelerator)  # type: ignore[arg-type]

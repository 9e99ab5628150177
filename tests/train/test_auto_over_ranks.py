"""auto in real processes: one, two and four train one network on the same global batch, and draw alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from global_draws import as_one_process, on_ranks
from small_runs import newest_tensors, records_without_clock, small_run, words

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

GLOBAL_BATCH = 16


def _settings(world: int) -> dict[str, Any]:
    # Stratified draws depend on the number of processes, as they should.
    settings = {"method": "auto:stratified=false", "labels": False, "dropout": 0.0, "steps": 60}
    return {**settings, "batch": GLOBAL_BATCH // world, "evaluate_every": 30, "sample_every": 0}


def _density(run: Path) -> torch.Tensor:
    return torch.tensor(records_without_clock(run)[-1]["density"])


def test_one_two_and_four_processes_learn_one_density(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for world in (2, 4):
        on_ranks(world, tmp_path, [words(tmp_path / str(world), **_settings(world))])
    as_one_process(monkeypatch)
    small_run(tmp_path / "1", **_settings(1))
    alone, weights = _density(tmp_path / "1"), newest_tensors(tmp_path / "1")
    assert (alone - 1).abs().max() > 0.05, "it has learned something"
    for world in ("2", "4"):
        assert (_density(tmp_path / world) - alone).abs().max() < 1e-3
        there = newest_tensors(tmp_path / world)
        for name in (name for name in weights if name.startswith(("model", "ema"))):
            torch.testing.assert_close(there[name], weights[name], rtol=1e-3, atol=1e-4, msg=name)

"""A pacer in torch's distributed checkpoints: what changes its size is loaded too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint

import stepwell
from stepwell.integrations.distributed_checkpoint import PacerEntry


def updated(pacer: stepwell.Pacer, updates: int) -> list[torch.Tensor]:
    drawn = []
    for _ in range(updates):
        pace = pacer.draw(torch.zeros(8, 1))
        pacer.observe(pace.u**2)
        pacer.before_update()
        pacer.after_update()
        drawn.append(pace.u)
    return drawn


@pytest.mark.filterwarnings("ignore")
def test_a_fresh_pacer_goes_on_where_the_saved_one_was(tmp_path: Path) -> None:
    first, second = stepwell.Pacer("auto", "flow"), stepwell.Pacer("auto", "flow")
    updated(first, 21)
    checkpoint.save({"pacer": PacerEntry(first)}, checkpoint_id=str(tmp_path))
    expected = updated(first, 5)
    checkpoint.load({"pacer": PacerEntry(second)}, checkpoint_id=str(tmp_path))
    found = updated(second, 5)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))

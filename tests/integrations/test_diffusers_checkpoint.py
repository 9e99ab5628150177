"""accelerate saves the pacer with everything else."""

from __future__ import annotations

from pathlib import Path

import torch
from hosts import Host, feed_randint, recorded

from stepwell.pacer import Pacer

HOST = Host("diffusers_unconditional", feed_randint)


def test_the_example_saves_its_pacer(tmp_path: Path) -> None:
    with recorded() as kept:
        HOST.module(paced=True).main(5, save_to=str(tmp_path))
    saved = torch.load(tmp_path / "custom_checkpoint_0.pkl", weights_only=True)
    assert saved["counter"]["step"] == 5
    x0, pacer = torch.zeros(16, 1, 16, 16), kept.pacers[0]
    resumed = Pacer("uniform", pacer.process)
    resumed.sampler = pacer.sampler
    resumed._counter.load_state_dict(saved["counter"])
    assert torch.equal(resumed.draw(x0).u, pacer.draw(x0).u)

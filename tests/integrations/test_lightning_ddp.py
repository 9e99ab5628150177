"""Two processes under Lightning's own DDP: one sampler, other draws."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import warnings
import torch
import torch.distributed
from test_lightning import PROCESS, Module, lightning, loader

import stepwell
from stepwell.integrations.lightning import PacerCallback

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    module = Module(stepwell.sampler("neyman", PROCESS, every_steps=1, strata=3, images=4))
    lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp_find_unused_parameters_true", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, callbacks=[PacerCallback(module.pacer)],
    ).fit(module, loader(16))
    density = module.pacer.sampler.density(torch.linspace(0.05, 0.95, 10))
    found = [None, None]
    torch.distributed.all_gather_object(found, (density, torch.cat(module.drawn), module.net.weight.detach()))
    one, two = found
    assert torch.equal(one[0], two[0]) and float(one[0].std()) > 0.01
    assert torch.equal(one[2], two[2])
    assert not torch.isin(one[1], two[1]).any()
    print("as it should be")
"""


@pytest.mark.slow
def test_ranks_hold_one_sampler_and_draw_other_times(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "two.py").write_text(SCRIPT)
    here = Path(__file__).parent
    known = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "two.py"], cwd=tmp_path, env=known, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "as it should be" in done.stdout

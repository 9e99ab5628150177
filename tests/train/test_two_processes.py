"""Two gloo processes with accumulation: one model, one sampler, one weighting, different timesteps."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_runs import newest_tensors, words

pytestmark = pytest.mark.full

SCRIPT = """
import os, sys, torch
sys.path.insert(0, {folder!r})
torch.set_num_threads(1)
from stepwell.recipes import run as running
from stepwell.recipes.load import load
from stepwell.train import loop

drawn, real = [], loop.train_step

def spy(training, step):
    spy.training = training
    report = real(training, step)
    drawn.append(report.u)
    return report

loop.train_step = spy
for words in {runs!r}:
    drawn.clear()
    running.run_plan(load("fashion16", words), say=lambda text: None)
network = spy.training.accelerator.unwrap_model(spy.training.denoiser)
sampler = spy.training.pacer.sampler.state_dict()["sampler"]["sampler"]
layer = spy.training.pacer.state_dict()["weighting"]["layer"]
torch.save(
    {{"weights": network.state_dict(), "ema": spy.training.ema.average,
      "sampler": [sampler["mean"], sampler["seen"], layer], "u": torch.stack(drawn)}},
    {out!r} + "/rank" + os.environ["RANK"] + ".pt",
)
"""


def _two_ranks(tmp_path: Path, *runs: list[str]) -> list[dict[str, torch.Tensor]]:
    """Train these runs one after the other in two processes: what each rank holds after the last."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), runs=runs, out=str(tmp_path)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}"]
    done = subprocess.run([*launch, str(script)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.timeout(400)
def test_ranks_hold_one_model_one_sampler_and_one_weighting_and_draw_apart(tmp_path: Path) -> None:
    # Exact resume holds for two processes as well: one run stops after 3 and goes on to 6 in other processes.
    settings = {"method": "loss-ema+uncertainty", "accumulate": 2}
    _two_ranks(tmp_path, words(tmp_path / "again", **settings, steps=3))
    run, again = (words(tmp_path / name, **settings, steps=6) for name in ("run", "again"))
    zero, one = _two_ranks(tmp_path, again, run)
    for key in zero["weights"]:
        assert torch.equal(zero["weights"][key], one["weights"][key]), key
    for mine, other in zip(zero["ema"] + zero["sampler"], one["ema"] + one["sampler"], strict=True):
        assert torch.equal(mine, other)
        assert mine.any()
    assert zero["u"].shape == (6, 16), "two micro-batches of eight"
    assert not torch.isin(zero["u"], one["u"]).any()
    whole, resumed = newest_tensors(tmp_path / "run"), newest_tensors(tmp_path / "again")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)

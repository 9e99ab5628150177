"""Draws and noise as functions of an example's place in the global batch: then any world trains the same."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stepwell.core.tick import Tick, uniforms
from stepwell.pacer.pace import Pace


def uniform(tick: Tick, stream: str, count: int, device: torch.device | str = "cpu") -> Tensor:
    """This rank's part of what a single process would draw."""
    whole = uniforms(replace(tick, rank=0, world=1).key(stream), count * tick.world, device)
    return whole[count * tick.rank : count * (tick.rank + 1)]


def noise_like(pace: Pace, x0: Tensor) -> Tensor:
    """This rank's part of a single process's noise."""
    tick, generator = pace.tick, replace(pace.tick, rank=0, world=1).generator("noise")
    whole = torch.randn((len(x0) * tick.world, *x0.shape[1:]), generator=generator)
    return whole[len(x0) * tick.rank : len(x0) * (tick.rank + 1)]


SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
torch.set_num_threads(1)
import global_draws
from stepwell.core.tick import Tick
from stepwell.pacer.pace import Pace
from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan

Tick.uniform, Pace.noise_like = global_draws.uniform, global_draws.noise_like
for words in {runs!r}:
    run_plan(load("fashion16", words), inexact=True, say=lambda text: None)
"""


def on_ranks(world: int, folder: Path, runs: list[list[str]]) -> None:
    """Train these runs one after the other in so many processes, which draw as one would."""
    script = folder / f"script{world}.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), runs=runs))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={world}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launch, f"--master_port={port}", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-5000:]


def as_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws in the process of a test."""
    monkeypatch.setattr(Tick, "uniform", uniform)
    monkeypatch.setattr(Pace, "noise_like", noise_like)

"""A run on several ranks that was stopped ends as one that never was, whatever its sampler learns from."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_runs import newest_tensors, records_without_clock, words

from stepwell.catalogue.find import find, names

pytestmark = pytest.mark.full

SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan

for words in {runs!r}:
    run_plan(load("fashion16", words), say=lambda text: None)
"""

# A probe is due in every step, and needs the images of more than one batch on each rank.
_OPTIONS = {
    "neyman": ":every_steps=1,images=16,strata=2",
    "gradient-variance": ":every_steps=1,images=16,strata=2",
    "alignment": ":every_steps=1,images=16,strata=2",
    "beta-policy": ":every_steps=1",
}
METHODS = {name: _OPTIONS.get(name, "") for name in names("sampler") if find("sampler", name).learns}
METHODS |= {"beta-policy:credit=alignment": ",every_steps=1"}


def _on_ranks(world: int, tmp_path: Path, runs: list[list[str]]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(runs=runs))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={world}"]
    command = [*launch, f"--master_port={port}", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


def _differing(a: Path, b: Path) -> list[str]:
    ours, theirs = newest_tensors(a), newest_tensors(b)
    assert ours.keys() == theirs.keys()
    differ = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    return differ + [a.name] * (records_without_clock(a) != records_without_clock(b))


@pytest.mark.timeout(1300)
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_learning_sampler_resumes_exactly(world: int, tmp_path: Path) -> None:
    runs, pairs = [], []
    for number, method in enumerate(name + options for name, options in METHODS.items()):
        whole, again = tmp_path / f"whole-{number}", tmp_path / f"again-{number}"
        settings = {"method": method, "batch": 16 // world, "evaluate_every": 0, "dropout": 0.0}
        runs += [words(whole, steps=7, **settings)]
        # It stops after a batch that the next probe still needs.
        runs += [words(again, steps=steps, **settings) for steps in (4, 7)]
        pairs.append((method, whole, again))
    _on_ranks(world, tmp_path, runs)
    wrong = {method: _differing(whole, again)[:3] for method, whole, again in pairs}
    assert {method: names for method, names in wrong.items() if names} == {}
    measured = [name for name in newest_tensors(pairs[0][1]) if name.startswith("pacer/ranks")]
    assert measured, "what belongs to each rank is in the checkpoint"

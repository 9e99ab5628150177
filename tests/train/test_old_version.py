"""Runs, checkpoints and exports of version 0.1.0 (0ed6321) still open, and a run goes on as it did there.

`tests/old_version/run` was trained to step 8 by that commit and exported by it; `continued.json` is what the
same commit recorded when it went on to step 12.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import small_run
from torch import Tensor

import stepwell
from stepwell.compare.summary import summarise
from stepwell.evaluate.bands import BandLosses, HeldOutLoss, fixed_generator
from stepwell.recipes.experiment import trained
from stepwell.recipes.load import load, saved_plan
from stepwell.recipes.run import run_plan
from stepwell.recipes.start import digest_at, read_start
from stepwell.runs.metrics import named_now

OLD = Path(__file__).parents[1] / "old_version"


def old_times(held_out: HeldOutLoss, band: int) -> Tensor:
    """The middles of equal slots of a band."""
    count = len(held_out.x0)
    order = torch.randperm(count, generator=fixed_generator(held_out.seed, "held-out", "order", band))
    return ((band + (order.double() + 0.5) / count) / held_out.bands).float()


def old_rule(held_out: HeldOutLoss, denoiser: Any) -> BandLosses:
    """Means over those times, each with its own weight."""
    losses = torch.stack([held_out.losses(denoiser, band) for band in range(held_out.bands)])
    u = torch.stack([old_times(held_out, band) for band in range(held_out.bands)]).double()
    weights = {name: stepwell.weighting(name)(held_out.process, u) for name in ("none", "vlb")}
    objectives = {name: float((weight * losses).mean()) for name, weight in weights.items()}
    return BandLosses(torch.zeros(0), losses.mean(1), objectives)


def test_a_run_goes_on_as_the_old_version_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Held-out losses have other times since: what training did is seen with those that were recorded.
    monkeypatch.setattr(HeldOutLoss, "times", old_times)
    monkeypatch.setattr(HeldOutLoss, "__call__", old_rule)
    shutil.copytree(OLD / "run", tmp_path / "run")
    plan = saved_plan(tmp_path / "run").with_settings(out=str(tmp_path / "run"), steps=12)
    said: list[str] = []
    assert run_plan(plan, say=said.append).step == 12
    assert "Resumed at step 8." in said
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    for key, value in named_now(json.loads((OLD / "continued.json").read_text())).items():
        # Bit for bit on the machine that recorded it; other processors round otherwise.
        assert last[key] == pytest.approx(value, rel=1e-3), key
    assert max(last["density"]) > 1.01, "the sampler had learned something, and kept it"


def test_its_weights_load_and_its_report_reads() -> None:
    experiment = trained(OLD / "run")
    assert experiment.recipe.method == "neyman:strata=4,every_steps=1,images=4"
    assert all(parameter.isfinite().all() for parameter in experiment.denoiser.parameters())
    workload = summarise([OLD / "run"]).workloads[0]
    assert workload.name == "fashion16"
    last = json.loads((OLD / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert workload.runs[0].values["objective/simple"][-1] == pytest.approx(last["objective/none"], rel=1e-4)


def test_its_checkpoint_and_its_export_are_the_same_start() -> None:
    stored = OLD / "run" / "checkpoints" / "step-000000008.safetensors"
    assert digest_at(str(stored)) == digest_at(str(OLD / "run")) == digest_at(str(OLD / "exported"))
    weights = read_start(str(OLD / "exported")).tensors
    assert all(torch.equal(weights[name], tensor) for name, tensor in read_start(str(stored)).tensors.items())


def test_a_new_run_starts_from_the_old_export(tmp_path: Path) -> None:
    settings = {"start": str(OLD / "exported"), "labels": False, "dropout": 0.0, "steps": 2}
    assert load("fashion16", settings={"from": str(OLD / "exported")}).recipe.start
    small_run(tmp_path / "run", **settings)

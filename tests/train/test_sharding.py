"""sharding=full: two and four ranks train as DDP and one process do, and open each other's runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from global_draws import as_one_process, on_ranks
from small_runs import assert_same_run, newest_tensors, records_without_clock, small_run, words

from stepwell.core.errors import Unsupported
from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan
from stepwell.train import checkpoint
from stepwell.train.step import TrainingStopped

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

GLOBAL_BATCH = 32
# A probe in every step, of all images of the batch.
COMMON: dict[str, Any] = {
    "method": "neyman:every_steps=1,images=16,strata=4,stratified=false",
    "labels": False,
    "dropout": 0.0,
}
COMMON |= {"evaluate_every": 10, "checkpoint_every": 10, "steps": 20, "warm_up_steps": 2, "sample_every": 0}


def _settings(world: int, **changes: Any) -> dict[str, Any]:
    return {**COMMON, "batch": GLOBAL_BATCH // world, "sharding": "full", **changes}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two ranks: `ddp`, `full`, and `again`, which stopped at step 10."""
    folder = tmp_path_factory.mktemp("sharding")
    runs = [words(folder / "ddp", **_settings(2, sharding="none"))]
    runs += [words(folder / "full", **_settings(2, samples=4, sample_steps=2))]
    runs += [words(folder / "again", **_settings(2, steps=steps)) for steps in (10, 20)]
    on_ranks(2, folder, runs)
    return folder


def _density(run: Path) -> torch.Tensor:
    return torch.tensor(records_without_clock(run)[-1]["density"])


def test_parts_train_as_the_whole_does_and_draw_alike(two: Path) -> None:
    ddp, full = newest_tensors(two / "ddp"), newest_tensors(two / "full")
    assert ddp.keys() == full.keys()
    for name in (name for name in ddp if name.startswith(("model", "ema"))):
        torch.testing.assert_close(full[name], ddp[name], rtol=1e-5, atol=1e-6, msg=name)
    ours, theirs = (records_without_clock(two / name)[-1] for name in ("full", "ddp"))
    assert ours["bands"] == pytest.approx(theirs["bands"], rel=1e-3)
    assert (_density(two / "full") - _density(two / "ddp")).abs().max() < 1e-3


def test_a_sharded_run_resumes_exactly(two: Path) -> None:
    assert_same_run(two / "full", two / "again")


def test_a_sharded_run_makes_samples_and_its_export_loads_in_diffusers(two: Path, tmp_path: Path) -> None:
    from diffusers import DDPMPipeline

    from stepwell.generate.export import export
    from stepwell.recipes.experiment import trained

    assert [path.name for path in (two / "full" / "samples").iterdir()] == ["step-000000020.png"]
    made = trained(two / "full")
    export(made.denoiser, made.process, made.data.train.shape, tmp_path / "pipeline")
    unet = DDPMPipeline.from_pretrained(str(tmp_path / "pipeline")).unet
    average = newest_tensors(two / "full")
    first = next(iter(unet.parameters()))
    assert torch.equal(first, average["ema/0"])


def test_one_process_and_four_ranks_draw_as_two_and_open_their_checkpoint(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("by 1", "by 4"):
        shutil.copytree(two / "full", tmp_path / name)
    on_ranks(
        4,
        tmp_path,
        [words(tmp_path / "four", **_settings(4)), words(tmp_path / "by 4", **_settings(2, steps=22))],
    )
    as_one_process(monkeypatch)
    small_run(tmp_path / "one", **_settings(1, sharding="none"))
    densities = {
        name: _density(run)
        for name, run in (("1", tmp_path / "one"), ("2", two / "full"), ("4", tmp_path / "four"))
    }
    assert (densities["1"] - 1).abs().max() > 0.05, "it has learned something"
    for name in ("2", "4"):
        assert (densities[name] - densities["1"]).abs().max() < 1e-3, name

    more = load("fashion16", words(tmp_path / "by 1", **_settings(2, sharding="none", steps=22)))
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(TrainingStopped, match="trained by 2 processes"):
        run_plan(more, say=lambda text: None)
    run_plan(more, inexact=True, say=lambda text: None)
    for name in ("by 1", "by 4"):
        steps = [line["step"] for line in records_without_clock(tmp_path / name) if line["kind"] == "train"]
        assert steps == list(range(1, 23)), name
        assert max(checkpoint.steps(tmp_path / name / "checkpoints")) == 22


def test_a_damaged_part_is_named_and_passed_over(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "full", tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    part = sorted(checkpoint.file(folder, 20).glob("shard-00002*"))[0]
    content = bytearray(part.read_bytes())
    content[-5] ^= 1
    part.write_bytes(content)
    found, wrong = checkpoint.newest(folder)
    assert found is not None
    assert found.info["step"] == 10
    assert part.name in wrong[0]


def test_one_process_has_nothing_to_share(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="there is one process only"):
        small_run(tmp_path / "run", **_settings(1))

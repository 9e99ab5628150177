"""LoRA: adapters learn beside a frozen network, and such a run is used like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import case
from diffusers import DDPMPipeline
from peft.tuners.lora import LoraLayer
from small_runs import assert_same_run, newest_tensors, records_without_clock, small_run, words
from test_resume import stopped_and_resumed

from stepwell.cli.main import main
from stepwell.models.lora import is_adapter, merged
from stepwell.recipes.experiment import trained
from stepwell.recipes.load import load
from stepwell.recipes.schema import BadRecipe
from stepwell.recipes.score import Effort, score
from stepwell.recipes.start import read_start
from stepwell.recipes.training import training_of

RANK = 3
METHODS = ["uniform", "neyman:strata=3,every_steps=2,images=2", "alignment:strata=3,every_steps=2,images=2",
           "beta-policy:every_steps=2,queue=4,grid=6,subset=2"]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("lora") / "base", labels=False, steps=6)


@pytest.fixture(scope="module")
def adapted(base: Path) -> Path:
    return small_run(base.parent / "run", **given(base))


def given(base: Path, **changes: Any) -> dict[str, Any]:
    return {"labels": False, "from": base, "lora": RANK, "steps": 6, "lr": 0.02, **changes}


def model(run: Path) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("model/"): tensor
        for name, tensor in newest_tensors(run).items()
        if name.startswith("model/")
    }


def test_the_network_stands_still_and_the_adapters_move(base: Path, adapted: Path) -> None:
    begun, ended = read_start(str(base)).tensors, model(adapted)
    frozen = {n.replace(".base_layer.", "."): t for n, t in ended.items() if not is_adapter(n)}
    assert frozen.keys() == begun.keys()
    for name, tensor in frozen.items():
        assert torch.equal(tensor, begun[name]), name
    up = [tensor for name, tensor in ended.items() if ".lora_B." in name]
    assert up
    assert all(float(tensor.abs().max()) > 0 for tensor in up), "they begin at 0"


def test_only_adapters_are_optimized_and_averaged(adapted: Path) -> None:
    tensors = newest_tensors(adapted)
    learned = [name for name in model(adapted) if is_adapter(name)]
    average = [name for name in tensors if name.startswith("ema/")]
    moments = [name for name in tensors if name.endswith("/exp_avg_sq")]
    assert len(average) == len(moments) == len(learned)


def test_it_begins_as_the_base_ended(base: Path, adapted: Path) -> None:
    last, first = (
        [record for record in records_without_clock(run) if record["kind"] == "evaluation"][place]
        for run, place in ((base, -1), (adapted, 0))
    )
    assert first["bands"] == pytest.approx(last["bands"], rel=1e-5)


def test_adding_adapters_to_layers_is_what_peft_adds(adapted: Path) -> None:
    network = trained(adapted).denoiser.network
    plain = merged(network.state_dict())
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, LoraLayer)}
    assert len(layers) > 20, "convolutions and linear layers alike"
    for name, layer in layers.items():
        wanted = layer.get_base_layer().weight + layer.get_delta_weight("default")
        torch.testing.assert_close(plain[f"{name}.weight"], wanted, rtol=1e-5, atol=1e-6)


def test_an_export_answers_as_the_adapted_network(adapted: Path, tmp_path: Path) -> None:
    assert main(["export", str(adapted), "--out", str(tmp_path / "pipeline")]) == 0
    pipeline = DDPMPipeline.from_pretrained(tmp_path / "pipeline")
    denoiser = trained(adapted).denoiser
    x, time = torch.randn(3, 1, 16, 16), torch.tensor([3, 400, 990])
    with torch.no_grad():
        ours, theirs = denoiser(x, time), pipeline.unet.eval()(x, time).sample
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    begun = read_start(str(tmp_path / "pipeline"))
    assert begun.digest == read_start(str(adapted)).digest, "both are a place to start from"


def test_it_can_be_generated_from_scored_and_analyzed(adapted: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "a.npz")
    assert main(["generate", str(adapted), "--out", out, "-n", "2", "--steps", "2"]) == 0
    found = score(trained(adapted), Effort(bits_images=2, bits_timesteps=2, generated=0))
    last = [record for record in records_without_clock(adapted) if record["kind"] == "evaluation"][-1]
    assert found["bands"] == last["bands"]
    gain = ["gain", str(adapted), "--strata", "2", "--rounds", "3", "--images", "2", "--json"]
    assert main(["analyze", *gain]) == 0


@pytest.mark.parametrize("method", [case(name, quick=name == METHODS[1]) for name in METHODS])
def test_every_way_to_measure_sees_adapters_alone_and_resumes(
    base: Path, tmp_path: Path, method: str
) -> None:
    changes = given(base, method=method)
    small_run(tmp_path / "whole", **changes)
    stopped_and_resumed(tmp_path / "run", 4, **changes)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_probes_are_given_adapters_alone(adapted: Path) -> None:
    from accelerate import Accelerator

    made = trained(adapted)
    training = training_of(made, Accelerator(cpu=True))
    watched = {id(p) for group in training.optimizer.param_groups for p in group["params"]}
    adapters = {id(p) for name, p in made.denoiser.named_parameters() if is_adapter(name)}
    assert watched == adapters


def test_adapters_without_a_network_or_without_peft(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadRecipe, match="name it with from=RUN"):
        load("fashion16", ["lora=4"])
    monkeypatch.setattr("stepwell.recipes.plan.find_spec", lambda name: None)
    with pytest.raises(BadRecipe, match=r"lora=3 needs peft.*pip install 'stepwell\[lora\]'"):
        load("fashion16", words(tmp_path / "run", **given(base)))


def test_dry_run_counts_what_learns(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fashion16", *words(tmp_path / "run", **given(base)), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert f"starts from {base}" in text
    assert "of them trained (rank 3)" in text

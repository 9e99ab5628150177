"""Fine-tuning begins where other weights ended, says so, and then stands on its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import assert_same_run, newest_tensors, records_without_clock, small_run, words

from stepwell.cli.main import main
from stepwell.generate.diffusers_io import BadPipeline
from stepwell.recipes.experiment import trained
from stepwell.recipes.load import load, with_out
from stepwell.recipes.run import run_plan
from stepwell.recipes.schema import BadRecipe
from stepwell.recipes.start import NothingToStartFrom, digest_at, read_start
from stepwell.train import checkpoint, loop

PLAIN = {"labels": False, "dropout": 0.0, "only_classes": "5,7,8,9"}
OTHER = {"labels": False, "only_classes": "0,1", "steps": 6, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("finetune") / "base", **PLAIN, steps=8)


@pytest.fixture(scope="module")
def exported(base: Path) -> Path:
    assert main(["export", str(base), "--out", str(base.parent / "pipeline")]) == 0
    return base.parent / "pipeline"


def evaluations(run: Path) -> list[dict[str, Any]]:
    return [record for record in records_without_clock(run) if record["kind"] == "evaluation"]


def test_every_kind_of_start_is_the_averaged_weights_bit_for_bit(
    base: Path, exported: Path, tmp_path: Path
) -> None:
    last = evaluations(base)[-1]
    file = checkpoint.file(base / "checkpoints", 8)
    digests = set()
    for kind, place in {"run": base, "checkpoint": file, "pipeline": exported}.items():
        out = small_run(tmp_path / kind, **{**PLAIN, "from": place, "steps": 1})
        first = evaluations(out)[0]
        assert first["step"] == 0
        assert first["bands"] == last["bands"], "the same weights have the same held-out losses"
        recipe = json.loads((out / "recipe.json").read_text())
        assert recipe["start"] == str(place)
        digests.add(recipe["start_digest"])
    assert len(digests) == 1
    assert len(digests.pop()) == 16


def test_a_file_without_its_run_can_be_started_from_too(base: Path, tmp_path: Path) -> None:
    shutil.copy(checkpoint.file(base / "checkpoints", 8), tmp_path / "weights.safetensors")
    found = read_start(str(tmp_path / "weights.safetensors"))
    assert found.recipe is None
    assert found.shape == (1, 16, 16)
    assert found.digest == read_start(str(base)).digest


def test_a_resumed_run_needs_its_base_no_more(base: Path, tmp_path: Path) -> None:
    whole, moved = tmp_path / "whole", tmp_path / "base"
    shutil.copytree(base, moved)
    small_run(whole, **OTHER, **{"from": moved})
    real = loop.train_step

    def interrupted(training: Any, step: int) -> Any:
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(training, step)

    given = words(tmp_path / "run", **OTHER, **{"from": moved})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", interrupted)
        assert run_plan(load("fashion16", given), say=lambda text: None).step == 3
    shutil.rmtree(moved)
    said: list[str] = []
    run_plan(load("fashion16", given), say=said.append)
    assert any("Resumed at step 3" in line for line in said)
    assert not any("starts from" in line for line in said)
    assert_same_run(whole, tmp_path / "run")
    assert trained(tmp_path / "run").recipe.start == str(moved), "and so does whatever reads it"


def test_what_is_begun_with_is_told(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = words(tmp_path / "run", **OTHER, **{"from": base})
    assert main(["train", "fashion16", *given, "--dry-run"]) == 0
    told = f"starts from {base}, averaged weights after step 8"
    assert told in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert main(["train", "fashion16", *given]) == 0
    assert told in capsys.readouterr().out


def test_all_that_does_not_fit_is_told_at_once(base: Path, tmp_path: Path) -> None:
    changes = {"model": "tiny", "labels": True, "process": "cosine", "size": 32, "learned_variance": True}
    with pytest.raises(BadRecipe) as caught:
        small_run(tmp_path / "run", **changes, **{"from": base})
    assert len(caught.value.mistakes) == 5
    text = str(caught.value)
    for said in (
        "write model=micro",
        "write labels=false",
        "write learned_variance=false",
        "process=linear there, cosine here: write process=linear",
        "its images are 16x16, ours 32x32: write size=16",
    ):
        assert said in text
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_a_folder_of_diffusers_is_checked_by_its_own_words(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRecipe) as caught:
        small_run(
            tmp_path / "run",
            **{**PLAIN, "from": exported, "model": "tiny", "process": "linear:prediction=v", "size": 8},
        )
    text = str(caught.value)
    assert "its network predicts eps, ours v" in text
    assert "block_out_channels" in text
    assert "its images are 16x16, ours 8x8: write size=16" in text
    with pytest.raises(BadRecipe, match="give its process"):
        small_run(tmp_path / "run", **{**PLAIN, "from": exported, "process": "cosine"})


def test_a_network_that_differs_only_in_its_layers_is_refused(base: Path, tmp_path: Path) -> None:
    stored = checkpoint.load(checkpoint.file(base / "checkpoints", 8))
    name = next(iter(stored.tree["model"]))
    stored.tree["model"][name], stored.tree["ema"][0] = torch.zeros(3), torch.zeros(3)
    checkpoint.save(tmp_path, stored, keep=1)
    with pytest.raises(BadRecipe, match=f"another network: 1 tensors differ, the first is {name}"):
        small_run(tmp_path / "run", **{**PLAIN, "from": checkpoint.file(tmp_path, 8)})


@pytest.mark.parametrize("damage", ["truncate", "flip", "not ours", "nothing", "folder"])
def test_places_without_weights_are_one_clear_error(
    base: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "weights.safetensors"
    content = bytearray(checkpoint.file(base / "checkpoints", 8).read_bytes())
    if damage == "truncate":
        place.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[-5] ^= 0x10
        place.write_bytes(content)
    elif damage == "not ours":
        save_file({"a": torch.zeros(2)}, place)
    elif damage == "folder":
        place.mkdir()
    else:
        (tmp_path / "weights.safetensor").touch()
    assert main(["train", "fashion16", *words(tmp_path / "run", **{"from": place})]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    told = {
        "truncate": "is truncated or not a checkpoint",
        "flip": "its contents do not match its checksum",
        "not ours": "not a checkpoint of stepwell",
        "nothing": f"there is nothing at '{place}'",
        "folder": "is neither a run directory",
    }
    assert told[damage] in error
    assert not (tmp_path / "run").exists()


def test_a_damaged_export_is_named(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "pipeline")
    weights = tmp_path / "pipeline" / "unet" / "diffusion_pytorch_model.safetensors"
    assert load_file(weights)
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(Exception, match="is truncated or not safetensors"):
        read_start(str(tmp_path / "pipeline"))


@pytest.mark.parametrize("name", ["DDPMPipeline", "EDMEulerScheduler", "os", "", None, ["DDPMScheduler"]])
def test_a_folder_may_name_known_schedulers_only(exported: Path, tmp_path: Path, name: Any) -> None:
    shutil.copytree(exported, tmp_path / "pipeline")
    config = tmp_path / "pipeline" / "scheduler" / "scheduler_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "_class_name": name}))
    with pytest.raises(BadPipeline, match="must name one of DDPMScheduler"):
        read_start(str(tmp_path / "pipeline"))


def test_settings_that_a_scheduler_refuses_are_one_error(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "pipeline")
    config = tmp_path / "pipeline" / "scheduler" / "scheduler_config.json"
    config.write_text(json.dumps({"_class_name": "DDPMScheduler", "beta_schedule": "none", "extra": [1]}))
    with pytest.raises(BadPipeline, match="has settings that DDPMScheduler refuses"):
        read_start(str(tmp_path / "pipeline"))


def test_weights_that_were_pinned_may_not_change(base: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="and 0123456789abcdef was asked for"):
        small_run(tmp_path / "run", **{**OTHER, "from": base, "start_digest": "0123456789abcdef"})
    small_run(tmp_path / "run", **{**OTHER, "from": base, "start_digest": digest_at(str(base))})
    other = small_run(tmp_path / "other", **PLAIN, steps=2, seed=3)
    with pytest.raises(Exception, match="start_digest="):
        small_run(tmp_path / "run", **{**OTHER, "from": other, "start_digest": digest_at(str(other))})


def test_the_digest_is_read_again_when_files_change(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", **PLAIN, steps=1)
    before = digest_at(str(run))
    small_run(run, **PLAIN, steps=2)
    assert digest_at(str(run)) != before
    with pytest.raises(NothingToStartFrom, match="Did you mean"):
        digest_at(str(tmp_path / "ran"))


def test_the_default_place_is_not_that_of_the_base() -> None:
    recipe = with_out(load("fashion16", ["from=runs/fashion16-uniform-0"]), "fashion16").recipe
    assert recipe.out == "runs/fashion16-uniform-0-from-fashion16-uniform-0"


def test_a_run_that_learns_from_gradients_can_start_elsewhere(base: Path, tmp_path: Path) -> None:
    given = {**OTHER, "from": base, "method": "neyman:strata=3,every_steps=2,images=2"}
    out = small_run(tmp_path / "run", **given)
    assert any("probe" in name for name in newest_tensors(out))

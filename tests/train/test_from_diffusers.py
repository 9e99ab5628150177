"""Networks that diffusers saved are trained on, whole or by LoRA, and go back as what diffusers loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from accelerate.state import AcceleratorState
from cases import case
from peft import PeftModel
from small_runs import SMALL, assert_same_run

from stepwell.catalogue.build import as_process
from stepwell.cli.main import main
from stepwell.core.errors import StepwellError
from stepwell.core.process import agree
from stepwell.models.denoiser import Condition
from stepwell.models.hub import folder_of
from stepwell.processes.scheduler import process_from
from stepwell.recipes.experiment import trained
from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan
from stepwell.recipes.saved_network import process_spec

UNET = {
    "sample_size": 16,
    "in_channels": 1,
    "out_channels": 1,
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "up_block_types": ("UpBlock2D",) * 2,
}
WITHOUT_TEXT = {"down_block_types": ("DownBlock2D",) * 2, "mid_block_type": "UNetMidBlock2D"}
DIT = {
    "sample_size": 16,
    "patch_size": 4,
    "in_channels": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_layers": 2,
    "num_embeds_ada_norm": 12,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "UNet2DModel": ("unet", {**UNET, "down_block_types": ("DownBlock2D", "AttnDownBlock2D")}),
    "UNet2DConditionModel": ("unet", {**UNET, **WITHOUT_TEXT}),
    "DiTTransformer2DModel": ("transformer", DIT),
}


def saved(folder: Path, kind: str, **changes: Any) -> Path:
    """A random network of a few kB and its scheduler, written by diffusers itself."""
    torch.manual_seed(0)
    part, config = KINDS[kind]
    getattr(diffusers, kind)(**{**config, **changes}).save_pretrained(folder / part)
    diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2").save_pretrained(folder / "scheduler")
    return folder


def settings(out: Path, start: Path | str, **changes: Any) -> list[str]:
    """Words that name neither model nor process."""
    values = {**SMALL, "labels": False, "steps": 4, "from": start, "out": out, "lr": 0.01, **changes}
    return [f"{name}={value}" for name, value in values.items() if name != "model"]


def train(out: Path, start: Path | str, **changes: Any) -> Path:
    # accelerate keeps the precision of the first run for the whole process.
    AcceleratorState._reset_state(reset_partial_state=True)
    run_plan(load("fashion16", settings(out, start, **changes)), say=lambda text: None)
    return out


@pytest.mark.parametrize(
    ("kind", "rank"),
    [case(kind, rank, quick=(kind[0] == "D") == bool(rank)) for kind in KINDS for rank in (0, 2)],
)
def test_trained_whole_or_by_adapters_and_loaded_by_diffusers_again(
    kind: str, rank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = saved(tmp_path / "base", kind)
    run = train(tmp_path / "run", base, lora=rank)
    recipe = json.loads((run / "recipe.json").read_text())
    assert (recipe["model"], recipe["process"]) == ("diffusers", "cosine")
    assert main(["export", str(run)]) == 0
    assert ("labels = torch.full((4,), 12)" in capsys.readouterr().out) == ("DiT" in kind)
    part, ours = KINDS[kind][0], trained(run).denoiser
    before, after = (
        getattr(diffusers, kind).from_pretrained(place / part).eval() for place in (base, run / "pipeline")
    )
    x, time = torch.randn(2, 1, 16, 16), torch.tensor([3.0, 800.0])
    more: dict[str, Any] = {"class_labels": torch.full((2,), 12)} if "DiT" in kind else {}
    more |= {"encoder_hidden_states": None} if "Condition" in kind else {}
    with torch.no_grad():
        expected = ours(x, time)
        torch.testing.assert_close(after(x, time, **more).sample, expected)
        assert not torch.allclose(before(x, time, **more).sample, expected)
        if rank:
            assert main(["export", str(run), "--adapters"]) == 0
            adapted = PeftModel.from_pretrained(before, str(run / "adapters")).eval()
            torch.testing.assert_close(adapted(x, time, **more).sample, expected)


def test_labels_of_a_dit_are_its_own_rows(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "DiTTransformer2DModel")
    denoiser = trained(train(tmp_path / "run", base, labels=True, dropout=0)).denoiser
    theirs = diffusers.DiTTransformer2DModel.from_pretrained(base / "transformer").eval()
    theirs.load_state_dict(denoiser.network.state_dict())
    x, time, labels = torch.randn(2, 1, 16, 16), torch.tensor([3.0, 800.0]), torch.tensor([0, 9])
    with torch.no_grad():
        given, none = denoiser(x, time, Condition(labels)), denoiser(x, time)
        torch.testing.assert_close(given, theirs(x, time, labels).sample)
        torch.testing.assert_close(none, theirs(x, time, torch.full((2,), 12)).sample)
    denoiser.label_dropout, many = 0.0, torch.full((64,), 3)
    x, time = x[:1].expand(64, -1, -1, -1), time[:1].expand(64)
    with torch.no_grad():
        same = denoiser.train()(x, time, Condition(many))
    torch.testing.assert_close(same, same[:1].expand_as(same), msg="its own dropout of labels is off")


@pytest.mark.parametrize(("rows", "dropout"), [(11, 0.1), (10, 0)])
def test_the_last_label_of_a_unet_is_that_of_no_class_if_it_is_none_of_the_data(
    rows: int, dropout: float, tmp_path: Path
) -> None:
    base = saved(tmp_path / "base", "UNet2DModel", num_class_embeds=rows)
    denoiser = trained(train(tmp_path / "run", base, labels=True, label_dropout=dropout, steps=1)).denoiser
    assert denoiser.classes == 10
    x, time = torch.randn(2, 1, 16, 16), torch.tensor([3.0, 800.0])
    with torch.no_grad():
        first, second = (denoiser(x, time, Condition(torch.full((2,), label))) for label in (0, 9))
        assert not torch.allclose(first, second)
        if rows > 10:
            torch.testing.assert_close(denoiser(x, time), denoiser(x, time, Condition(torch.full((2,), 10))))


def test_twice_the_channels_are_a_learned_variance(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "DiTTransformer2DModel", out_channels=2)
    made = trained(train(tmp_path / "run", base, steps=1))
    assert made.recipe.learned_variance
    assert made.denoiser(torch.randn(1, 1, 16, 16), torch.tensor([3])).shape == (1, 2, 16, 16)


@pytest.mark.full
def test_a_begun_run_needs_its_folder_no_more(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "UNet2DModel")
    whole = train(tmp_path / "whole", base, evaluate_every=2)
    run = train(tmp_path / "run", base, evaluate_every=2, steps=2)
    shutil.rmtree(base)
    assert_same_run(whole, train(run, base, evaluate_every=2, steps=4))
    next_run = train(tmp_path / "next", run)
    assert json.loads((next_run / "recipe.json").read_text())["model"] == "diffusers"


SCHEDULERS = {
    "linear": diffusers.DDPMScheduler(),
    "scaled-linear": diffusers.PNDMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True
    ),
    "cosine:prediction=v": diffusers.DDIMScheduler(
        beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction"
    ),
    "linear:timesteps=200,beta_start=0.001,beta_end=0.1": diffusers.DDPMScheduler(
        beta_start=0.001, beta_end=0.1, num_train_timesteps=200
    ),
    "scaled-linear:prediction=v,zero_terminal_snr=true": diffusers.DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
    ),
    "flow:shift=3,timesteps=1000,time_scale=1000": diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
}


@pytest.mark.parametrize("spec", SCHEDULERS)
def test_the_process_is_that_of_the_scheduler(spec: str, tmp_path: Path) -> None:
    SCHEDULERS[spec].save_pretrained(tmp_path)
    assert process_spec(tmp_path) == spec
    assert agree(as_process(spec), process_from(SCHEDULERS[spec]), inputs=True)


def test_an_old_folder_has_network_and_scheduler_side_by_side(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "UNet2DModel")
    for part in ("unet", "scheduler"):
        for file in (base / part).iterdir():
            file.rename(base / file.name)
        (base / part).rmdir()
    run = train(tmp_path / "run", base, steps=1)
    assert json.loads((run / "recipe.json").read_text())["process"] == "cosine"


def test_a_schedule_that_nobody_published_is_refused(tmp_path: Path) -> None:
    betas = torch.linspace(1e-4, 0.02, 1000).roll(1).tolist()
    diffusers.DDPMScheduler(trained_betas=betas).save_pretrained(tmp_path)
    with pytest.raises(StepwellError, match="has a schedule that no process"):
        process_spec(tmp_path)


WITH_TEXT = {"down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "cross_attention_dim": 8}
BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("UNet2DConditionModel", WITH_TEXT, {}, "write captions=true and text_encoder=FOLDER"),
    ("UNet2DConditionModel", {"class_embed_type": "timestep"}, {}, "wants inputs that no data here have"),
    (
        "UNet2DModel",
        {"in_channels": 3, "out_channels": 3},
        {},
        "takes 3 channels and makes 3, and the data need 1 and 1",
    ),
    ("UNet2DModel", {"in_channels": 3, "sample_size": None}, {}, "takes 3 channels and makes 1"),
    ("UNet2DModel", {"sample_size": 8}, {}, "its images are 8x8, ours 16x16"),
    ("UNet2DModel", {}, {"size": 15}, "must have the size a multiple of 2, not 15"),
    ("UNet2DModel", {}, {"labels": True}, "has no labels: write labels=false"),
    ("UNet2DModel", {"num_class_embeds": 10}, {"labels": True}, "Write label_dropout=0"),
    ("UNet2DModel", {"num_class_embeds": 11}, {}, "embeds 11 labels: write labels=true"),
    ("DiTTransformer2DModel", {"num_embeds_ada_norm": 9}, {"labels": True}, "has 9 classes, the data 10"),
    ("DiTTransformer2DModel", {}, {"size": 8}, "must have the size 16, not 8"),
]


@pytest.mark.parametrize(("kind", "config", "changes", "said"), BAD)
def test_what_cannot_work_is_one_sentence(
    kind: str, config: dict[str, Any], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    base = saved(tmp_path / "base", kind, **config)
    with pytest.raises(StepwellError, match=said):
        train(tmp_path / "run", base, **changes)
    assert not (tmp_path / "run").exists()


def test_a_network_of_another_class_is_refused(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "UNet2DModel")
    config = base / "unet" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "_class_name": "FluxTransformer2DModel"}))
    with pytest.raises(StepwellError, match="FluxTransformer2DModel cannot be trained here"):
        train(tmp_path / "run", base)


def test_a_name_on_the_hub_is_its_local_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, commit = tmp_path / "models--someone--tiny", "0" * 40
    saved(repository / "snapshots" / commit, "UNet2DModel")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    plan = load("fashion16", settings(tmp_path / "run", "hub:someone/tiny"))
    assert (plan.recipe.model, plan.recipe.process) == ("diffusers", "cosine")
    run = train(tmp_path / "run", "hub:someone/tiny", steps=1)
    shutil.rmtree(repository)
    folder_of.__globals__["_fetched"].cache_clear()
    with pytest.raises(StepwellError, match="hub:someone/tiny cannot be fetched"):
        folder_of("hub:someone/tiny")
    assert load(str(run)).recipe.process == "cosine", "a run knows what it began from"

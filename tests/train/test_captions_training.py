"""A network learns to follow captions, which a frozen text encoder embeds once; the run is like any other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from autoencoders import saved as saved_autoencoder
from diffusers import UNet2DConditionModel
from small_runs import assert_same_run
from text_encoders import CAPTIONS, TOKENS, WIDTH, captioned_images, saved_text_encoder

from stepwell.cli.main import main
from stepwell.compare.trials import trial_of
from stepwell.core.errors import StepwellError
from stepwell.models.denoiser import Condition
from stepwell.models.text_encoder import BadTextEncoder, TextEncoder, find_text_encoder
from stepwell.recipes.experiment import experiment, trained
from stepwell.recipes.load import load
from stepwell.recipes.run import run_plan
from stepwell.recipes.schema import DEFINES_RESULT, BadRecipe


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("STEPWELL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, encoder/ and run/."""
    home = tmp_path_factory.mktemp("text")
    captioned_images(home / "data")
    saved_text_encoder(home / "encoder")
    train(home, home / "run")
    return home


def settings(home: Path, out: Path, **changes: Any) -> list[str]:
    values = {
        "data": home / "data",
        "captions": "true",
        "text_encoder": home / "encoder",
        "model": "text-tiny",
        "process": "cosine:prediction=v",
        "steps": 2,
        "batch": 4,
        "lr": 3e-3,
        "ema": 0.9,
        "warm_up_steps": 10,
        "flips": "false",
        "evaluate_every": 0,
        "bands": 4,
        "checkpoint_every": 2,
        "samples": 4,
        "sample_every": 0,
        "sample_steps": 4,
        "out": out,
        **changes,
    }
    return [f"{name}={value}" for name, value in values.items() if value is not None]


def train(home: Path, out: Path, **changes: Any) -> Path:
    # accelerate keeps the precision of the first run for the whole process.
    AcceleratorState._reset_state(reset_partial_state=True)
    run_plan(load("images", settings(home, out, **changes)), say=lambda text: None)
    return out


def brightness(run: Path, out: Path, prompt: str, *more: str) -> Any:
    words = ["--out", str(out), "--prompt", prompt, "-n", "4", "--steps", "10", *more]
    assert main(["generate", str(run), *words]) == 0
    return np.load(out)["images"].reshape(4, -1).mean(1)


@pytest.mark.full
def test_prompts_are_followed_as_far_as_guidance_says(home: Path, tmp_path: Path) -> None:
    run = train(home, tmp_path / "run", steps=100, batch=16, checkpoint_every=100)
    gaps = []
    for guidance in ("0", "0.4", "1"):
        dark, light = (
            brightness(run, tmp_path / f"{k}-{guidance}.npz", CAPTIONS[k], "--guidance", guidance)
            for k in (0, 1)
        )
        gaps.append(float((light - dark).min()))
    assert gaps[0] == 0, "without any, the prompt is not heard"
    assert gaps[0] < gaps[1] < gaps[2]
    assert gaps[2] > 60, "of 200, from the same noise"


def test_several_prompts_take_turns_and_belong_to_what_a_folder_is_made_of(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(home / "run"), "--steps", "4", "-n", "4", "--out", str(tmp_path / "images")]
    both = [word for caption in CAPTIONS for word in ("--prompt", caption)]
    assert main([*words, *both]) == 0
    assert main([*words, *both]) == 0
    assert "were there already" in capsys.readouterr().out
    assert main([*words, *both[2:], *both[:2]]) == 2


def test_a_long_prompt_is_cut_with_a_notice(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brightness(home / "run", tmp_path / "long.npz", "a dark one " * 9)
    assert f"cut to the {TOKENS} tokens" in capsys.readouterr().out


def test_no_caption_is_the_empty_text(home: Path) -> None:
    made = trained(home / "run")
    encoder = find_text_encoder(str(home / "encoder"))
    rows, _ = encoder.embed([*CAPTIONS, ""])
    assert torch.equal(made.denoiser.network.texts, rows)
    x, time = torch.randn(2, 1, 8, 8), torch.tensor([5, 900])
    with torch.no_grad():
        none, empty = made.denoiser(x, time), made.denoiser(x, time, Condition(torch.tensor([2, 2])))
        first = made.denoiser(x, time, Condition(torch.tensor([0, 0])))
    assert torch.equal(none, empty)
    assert not torch.allclose(none, first)


def test_captions_are_embedded_once(home: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = TextEncoder.embed

    def counted(self: TextEncoder, texts: Any) -> Any:
        calls.append(len(texts))
        return real(self, texts)

    monkeypatch.setattr(TextEncoder, "embed", counted)
    plan = load("images", settings(home, home / "unused"))
    experiment(plan)
    assert calls == []
    (file,) = (cache / "texts").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:50])
    experiment(plan)
    assert calls == [3], "a damaged file is made again"


def test_other_captions_and_other_encoders_have_files_of_their_own(home: Path, tmp_path: Path) -> None:
    others = [home / "encoder", saved_text_encoder(tmp_path / "other", seed=1)]
    for encoder in map(find_text_encoder, map(str, others)):
        for texts in (["a", "b"], ["a", "c"]):
            stored, _ = encoder.embed_once(texts, tmp_path / "cache")
            assert torch.equal(stored, encoder.embed(texts)[0])


@pytest.mark.full
def test_a_resumed_run_is_the_same_bit_for_bit(home: Path, tmp_path: Path) -> None:
    changes = {"steps": 4, "samples": 0, "record_every": 1, "evaluate_every": 2, "checkpoint_every": 2}
    whole = train(home, tmp_path / "whole", **changes)
    half = train(home, tmp_path / "run", **{**changes, "steps": 2})
    assert_same_run(whole, train(home, half, **changes))


@pytest.mark.parametrize("method", ["neyman:strata=3,every_steps=2,images=2", "loss-ema"])
def test_samplers_that_learn_see_captions(home: Path, tmp_path: Path, method: str) -> None:
    train(home, tmp_path / "run", steps=4, method=method, samples=0)


def test_samples_and_evaluation_take_the_captions_of_the_data(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set((home / "run" / "samples" / "captions.txt").read_text().splitlines()) <= set(CAPTIONS)
    assert main(["evaluate", str(home / "run"), "-n", "4"]) == 0
    assert "simple loss" in capsys.readouterr().out


def test_export_is_what_diffusers_and_transformers_load(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "exported"
    assert main(["export", str(home / "run"), "--out", str(out)]) == 0
    code = capsys.readouterr().out.partition("In Python:\n")[2]
    scope: dict[str, Any] = {}
    exec(code.replace("what to make", CAPTIONS[1]).replace("set_timesteps(50)", "set_timesteps(3)"), scope)
    assert type(scope["network"]) is UNet2DConditionModel
    made = trained(home / "run")
    x, time, labels = torch.randn(4, 1, 8, 8), torch.tensor([5, 100, 500, 900]), torch.ones(4).long()
    with torch.no_grad():
        ours = made.denoiser(x, time, Condition(labels))
        theirs = scope["network"](x, time, encoder_hidden_states=scope["texts"]).sample
    torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-3)  # ours are kept in half precision
    follows = dict.fromkeys(("model", "text_encoder", "process"))
    tuned = train(home, tmp_path / "tuned", **{"from": out, "lora": 2, "steps": 2, "samples": 0, **follows})
    recipe = json.loads((tuned / "recipe.json").read_text())
    assert (recipe["text_encoder"], recipe["process"]) == (str(out), "cosine:prediction=v")
    assert recipe["text_digest"] == made.recipe.text_digest


def test_latents_keep_captions(home: Path, tmp_path: Path) -> None:
    autoencoder = saved_autoencoder("AutoencoderKL", tmp_path / "vae")
    words = ["encode", str(home / "data"), "--autoencoder", str(autoencoder), "--captions", "--no-flips"]
    assert main(["data", *words, "--out", str(tmp_path / "latents")]) == 0
    changes = {"data": tmp_path / "latents", "steps": 2, "flips": None}
    run = train(home, tmp_path / "run", **changes)
    assert trained(run).data.captions == CAPTIONS
    with pytest.raises(StepwellError, match="has no labels"):
        train(
            home, tmp_path / "other", **changes, labels=True, captions=None, text_encoder=None, model="micro"
        )
    (tmp_path / "latents" / "captions.json").write_text('["a", "b"]')
    with pytest.raises(StepwellError, match=r"captions.json was edited"):
        trained(run)


BAD = [
    ({"text_encoder": None}, "captions=true needs text_encoder=FOLDER"),
    ({"captions": None}, "text_encoder= embeds captions"),
    ({"captions": None, "text_encoder": None}, "model=text-tiny is told captions"),
    ({"model": "tiny"}, "model=tiny cannot be told captions: write model=text-tiny"),
    ({"labels": True}, "captions=true takes the place of classes"),
    ({"text_encoder": "nowhere"}, "there is no text encoder at 'nowhere'"),
]


@pytest.mark.parametrize(("changes", "said"), BAD)
def test_what_is_missing_or_in_the_way_is_told(
    home: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises((BadRecipe, BadTextEncoder), match=said):
        train(home, tmp_path / "run", **changes)


def test_prompts_need_a_run_with_captions(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"captions": None, "text_encoder": None, "model": "micro", "steps": 1, "samples": 0}
    run, out = train(home, tmp_path / "run", **plain), str(tmp_path / "out.npz")
    assert main(["generate", str(run), "--out", out, "--prompt", "a cat"]) == 2
    assert "was trained without captions" in capsys.readouterr().err
    assert main(["generate", str(home / "run"), "--out", out, "--labels", "0"]) == 2
    assert "write --prompt TEXT" in capsys.readouterr().err


def test_another_encoder_is_refused(home: Path, tmp_path: Path) -> None:
    run = train(home, tmp_path / "run", steps=2, samples=0)
    other = saved_text_encoder(tmp_path / "other", seed=1)
    with pytest.raises(StepwellError, match="text_digest="):
        train(home, run, steps=4, samples=0, text_encoder=other)
    with pytest.raises(BadRecipe, match="its captions were embedded by another text encoder"):
        train(home, tmp_path / "next", **{"from": run, "text_encoder": other})
    recipe = json.loads((run / "recipe.json").read_text())
    (run / "recipe.json").write_text(json.dumps({**recipe, "text_encoder": str(other)}))
    with pytest.raises(StepwellError, match="name the encoder that it began with"):
        trained(run)


def test_a_study_knows_its_finished_runs_by_the_encoder(home: Path, tmp_path: Path) -> None:
    run = trained(home / "run").recipe
    for encoder, same in ((home / "encoder", True), (saved_text_encoder(tmp_path / "other", seed=1), False)):
        plan = load("images", settings(home, home / "run", text_encoder=encoder))
        trial = trial_of("images", plan, Path("run"), (home,))
        assert trial.recipe.agrees(run, DEFINES_RESULT) == same


def test_every_layout_of_an_encoder_embeds_alike(home: Path, tmp_path: Path) -> None:
    wanted, _ = find_text_encoder(str(home / "encoder")).embed(CAPTIONS)
    flat = find_text_encoder(str(saved_text_encoder(tmp_path / "flat", flat=True)))
    assert flat.shape == (TOKENS, WIDTH)
    assert torch.equal(flat.embed(CAPTIONS)[0], wanted)


@pytest.mark.parametrize("damage", ["type", "weights", "tokenizer", "truncated", "shape"])
def test_a_damaged_encoder_is_one_error(home: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(home / "encoder", folder)
    config, weights = folder / "text_encoder" / "config.json", folder / "text_encoder" / "model.safetensors"
    if damage == "type":
        config.write_text(json.dumps({"model_type": "bert"}))
    elif damage == "shape":
        config.write_text(json.dumps({**json.loads(config.read_text()), "hidden_size": "none"}))
    elif damage == "weights":
        weights.unlink()
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:1000])
    else:
        shutil.rmtree(folder / "tokenizer")
    said = {
        "type": "holds a bert",
        "weights": "has no text encoder",
        "tokenizer": "has no tokenizer",
        "truncated": "cannot be loaded",
        "shape": "no usable sizes",
    }
    with pytest.raises(BadTextEncoder, match=said[damage]):
        find_text_encoder(str(folder)).embed(["a"])

"""Super-resolution: the small image is shown in training, in evaluation, in probes and in generation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import case
from PIL import Image
from small_runs import assert_same_run, records_without_clock, small_run
from test_resume import stopped_and_resumed

from stepwell.cli.main import main
from stepwell.data.source import to_pixels
from stepwell.models.denoiser import Condition, downsampled, upsampled
from stepwell.recipes.experiment import trained
from stepwell.recipes.latents import psnr
from stepwell.recipes.load import load
from stepwell.recipes.schema import BadRecipe
from stepwell.recipes.score import Effort, score
from stepwell.recipes.training import evaluation_of
from stepwell.runs.metrics import SCORED

METHODS = ["neyman:strata=3,every_steps=2,images=4", "alignment:strata=3,every_steps=2,images=2",
           "beta-policy:every_steps=2,queue=4,grid=6,subset=2"]  # fmt: skip
SMALL = {"super_resolution": 4, "labels": False, "batch": 4, "steps": 6}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("sr") / "run", **{**SMALL, "samples": 4, "sample_steps": 2})


def picture(path: Path) -> Any:
    with Image.open(path) as opened:
        return np.asarray(opened)


def test_the_workload_is_what_it_says() -> None:
    recipe = load("fashion16-sr").recipe
    assert (recipe.data, recipe.super_resolution) == ("fashion16", 4)


def test_held_out_losses_are_of_the_network_that_is_shown_the_small_image(run: Path) -> None:
    made = trained(run)
    last = [record for record in records_without_clock(run) if record["kind"] == "evaluation"][-1]
    assert evaluation_of(made, torch.device("cpu"))(made.denoiser)["bands"] == last["bands"]
    x0 = made.data.held_out.examples(torch.arange(2))
    shown = made.conditioning.of(x0, None)
    assert torch.equal(shown.channels, upsampled(downsampled(x0, 4), 4))
    x, time = torch.randn_like(x0), torch.tensor([10, 500])
    with torch.no_grad():
        told, other = made.denoiser(x, time, shown), made.denoiser(x, time, Condition(None, -shown.channels))
    assert not torch.allclose(told, other), "another small image is another answer"


@pytest.mark.parametrize("method", [case(name, quick=name == METHODS[0]) for name in METHODS])
def test_probes_get_the_condition_and_resume_with_it(tmp_path: Path, method: str) -> None:
    # At batch 4 neyman's 8 images come from two steps: their small images have to be in the checkpoint.
    changes = {**SMALL, "method": method}
    small_run(tmp_path / "whole", **changes)
    stopped_and_resumed(tmp_path / "run", 3, **changes)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_sheet_shows_the_small_image_the_generated_one_and_the_original(run: Path, tmp_path: Path) -> None:
    assert main(["generate", str(run), "--out", str(tmp_path / "a.png"), "-n", "4", "--steps", "2"]) == 0
    assert main(["generate", str(run), "--out", str(tmp_path / "a.npz"), "-n", "4", "--steps", "2"]) == 0
    made = np.load(tmp_path / "a.npz")["images"][..., 0]
    # Below the titles of the columns.
    shown = picture(tmp_path / "a.png")[16::4, ::4, 0]
    held_out = trained(run).data.held_out.examples(torch.arange(4))
    small = to_pixels(downsampled(held_out, 4))[:, 0].numpy()
    for number in range(4):
        top, left = 17 * (number // 2), 51 * (number % 2)
        blocks, ours, original = (shown[top : top + 16, left + 17 * k : left + 17 * k + 16] for k in range(3))
        assert np.array_equal(blocks[::4, ::4], small[number])
        assert np.array_equal(ours, made[number])
        assert np.array_equal(original, to_pixels(held_out)[number, 0].numpy())
    assert np.array_equal(picture(next((run / "samples").iterdir())), picture(tmp_path / "a.png"))


def test_pictures_of_the_user_are_enlarged(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 4), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "own" / f"{number}.png")
    (tmp_path / "own" / "notes.txt").write_text("not a picture")
    words = ["generate", str(run), "--steps", "2", "--input", str(tmp_path / "own"), "--out"]
    assert main([*words, str(tmp_path / "a.png")]) == 0
    told = capsys.readouterr().out
    assert "skipped 1 of 3 files" in told
    assert "Wrote 2 images" in told
    shown = picture(tmp_path / "a.png")[16::4, ::4, 0]
    blocks, plain = shown[:16:4, :16:4], shown[:16, 17:33]
    assert np.array_equal(blocks, pixels[0])
    low = torch.from_numpy(pixels[:1, None]).float() / 127.5 - 1
    assert np.array_equal(plain, to_pixels(upsampled(low, 4))[0, 0].numpy())
    # One picture, several times: each from other noise, and not from another picture.
    words[-2] = str(tmp_path / "own" / "0.png")
    assert main([*words, str(tmp_path / "b.npz"), "-n", "3"]) == 0
    assert main([*words, str(tmp_path / "c.npz"), "-n", "1"]) == 0
    several = np.load(tmp_path / "b.npz")["images"]
    assert len({image.tobytes() for image in several}) == 3
    assert np.array_equal(several[0], np.load(tmp_path / "c.npz")["images"][0])


def test_input_that_cannot_be_enlarged_is_told(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(run), "--out", str(tmp_path / "a.png"), "--input"]
    assert main([*words, str(tmp_path / "nothing")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err
    (tmp_path / "text.txt").write_text("text")
    assert main([*words, str(tmp_path / "text.txt")]) == 2
    assert "none is a readable image" in capsys.readouterr().err
    words[1] = str(small_run(tmp_path / "plain", steps=1))
    assert main([*words, str(tmp_path / "text.txt")]) == 2
    assert "was not trained to enlarge pictures" in capsys.readouterr().err


def test_an_image_depends_on_its_own_small_image_and_not_on_its_batch(run: Path, tmp_path: Path) -> None:
    for name, batch in (("one", "1"), ("all", "4")):
        words = ["--out", str(tmp_path / name), "-n", "4", "--steps", "2", "--batch", batch]
        assert main(["generate", str(run), *words]) == 0
    for number in range(4):
        one, other = (picture(tmp_path / name / f"{number:06d}.png").astype(int) for name in ("one", "all"))
        assert np.abs(one - other).max() <= 1
    assert "reduced by 4" in json.loads((tmp_path / "one" / "generation.json").read_text())["originals"]


def test_a_score_says_how_near_the_originals_are(run: Path) -> None:
    made, effort = trained(run), Effort(bits_images=4, bits_timesteps=3, generated=70, steps=2, reference=300)
    found = score(made, effort)
    assert not any(math.isnan(metric.read(found)) for metric in SCORED)
    near = found["super_resolution"]
    x0 = made.data.held_out.examples(torch.arange(70))
    plain = psnr(to_pixels(upsampled(downsampled(x0, 4), 4)), to_pixels(x0))
    assert near["psnr_of_plain_enlargement"] == pytest.approx(plain)
    assert 0 < near["psnr"] < plain, "a network of six steps is worse than interpolation"
    assert found["fashion16_features"]["frechet_distance"] > 0
    assert found["bits_per_dimension"]["total"] > 0


def test_folders_of_colour_images_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(12):
        Image.new("RGB", (20, 30), (number * 20, 5, 90)).save(tmp_path / "photos" / f"{number}.png")
    words = ["model=micro", "steps=2", "batch=4", "evaluate_images=2", "bands=2", "samples=2",
             "sample_steps=2", "size=8", f"data={tmp_path / 'photos'}"]  # fmt: skip
    assert main(["train", "images", *words, "super_resolution=4", f"out={tmp_path / 'run'}"]) == 0
    assert picture(tmp_path / "run" / "samples" / "step-000000002.png").shape[2] == 3
    assert main(["evaluate", str(tmp_path / "run"), "-n", "2", "--steps", "2"]) == 0
    text = capsys.readouterr().out
    assert "  PSNR  " in text
    assert " dB (2 images; plain enlargement: " in text


def test_it_cannot_be_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "pipeline")]) == 2
    assert "no pipeline of diffusers passes them" in capsys.readouterr().err


def test_its_cost_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=micro", "batch=4", f"out={tmp_path / 'x'}"]
    assert main(["train", "fashion16-sr", *words, "--dry-run"]) == 0
    assert "steps a second here" in capsys.readouterr().out
    assert main(["train", "images", "model=tiny", "size=32", "super_resolution=4", "--dry-run"]) == 0
    assert "all of this is counted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["super_resolution=1"], "give 2 or more, or 0"),
        (["super_resolution=-2"], "must be 0 or more"),
        (["super_resolution=3", "size=32"], "does not divide size=32"),
        (["only_classes=shoes"], "numbers of classes such as 5,7,9"),
    ],
)
def test_mistakes(words: list[str], told: str) -> None:
    with pytest.raises(BadRecipe, match=told):
        load("fashion16", words)

"""The verbs around training, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stepwell.cli.main import main
from stepwell.cli.train import _ending
from stepwell.recipes.method import parse_method

SMALL = ["model=micro", "steps=4", "batch=8", "evaluate_every=2", "evaluate_images=4", "bands=4",
         "checkpoint_every=2", "samples=4", "sample_steps=2"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "fashion16", *SMALL, f"out={out}", "method=min-snr"]) == 0
    return out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_train_ends_by_saying_where_to_look(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fashion16", *SMALL, f"out={run}", "method=min-snr"]) == 0
    assert f"{run}: 4 steps" in capsys.readouterr().out


def test_an_evaluation_that_was_not_finite_is_left_out_of_the_ending(tmp_path: Path) -> None:
    lines = [
        {"kind": "evaluation", "step": step, "objective/simple": loss} for step, loss in ((2, 0.5), (4, None))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "Held-out simple loss 0.5000 (EMA weights), its lowest." in list(_ending(tmp_path, 4, 1.0))


def test_dry_run_prints_recipe_and_cost_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "fashion16", *SMALL, f"out={tmp_path / 'x'}", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "steps a second here" in text
    assert "method             = 'uniform'" in text
    assert not (tmp_path / "x").exists()


@pytest.mark.full
def test_generate_evaluate_and_export(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(run), "--out", str(tmp_path / "a.npz"), "-n", "5", "--steps", "2"]) == 0
    assert np.load(tmp_path / "a.npz")["images"].shape == (5, 16, 16, 1)
    assert main(["generate", str(run), "--out", str(tmp_path / "a.png"), "-n", "5", "--steps", "2"]) == 0
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 16
    capsys.readouterr()
    assert main(["evaluate", str(run), "-n", "70", "--steps", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    bits = found["bits_per_dimension"]
    assert bits["total"] == pytest.approx(bits["decoder"] + bits["diffusion"] + bits["prior"])
    assert found["fashion16_features"]["frechet_distance"] > 0
    assert main(["evaluate", str(run), "-n", "0"]) == 0
    text = capsys.readouterr().out
    assert "  bits per dimension  " in text
    assert "  simple loss  " in text
    assert "  bound  " in text
    assert main(["export", str(run), "--out", str(tmp_path / "pipeline")]) == 0
    assert (tmp_path / "pipeline" / "model_index.json").exists()
    assert "is not empty" in refused(capsys, "export", str(run), "--out", str(tmp_path / "pipeline"))


def test_any_folder_of_images_is_one_word_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(12):
        Image.new("RGB", (20, 30), (number * 20, 5, 90)).save(tmp_path / "photos" / f"{number}.jpg")
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    words = [*SMALL, f"data={tmp_path / 'photos'}", "size=8", f"out={tmp_path / 'run'}"]
    assert main(["train", "images", *words]) == 0
    assert "notes.txt" in capsys.readouterr().out
    assert (
        main(["generate", str(tmp_path / "run"), "--out", str(tmp_path / "g.png"), "-n", "2", "--steps", "2"])
        == 0
    )
    assert "notes.txt" in refused(capsys, "train", "images", *words, "strict=true", f"out={tmp_path / 'b'}")


def test_bad_folders_are_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("hello")
    for folder in ("empty", "texts", "missing"):
        out = tmp_path / f"run-{folder}"
        said = refused(capsys, "train", "images", *SMALL, f"data={tmp_path / folder}", "size=8", f"out={out}")
        assert folder in said
        assert not out.exists(), "nothing is left behind"


def test_a_recipe_can_be_copied_and_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    assert main(["cp", "fashion16", str(own)]) == 0
    assert main(["train", str(own), *SMALL, f"out={tmp_path / 'run'}"]) == 0
    assert "exists already" in refused(capsys, "cp", "fashion16", str(own))
    assert "Did you mean 'fashion16'" in refused(capsys, "cp", "fashion", str(tmp_path / "b.toml"))
    method = tmp_path / "mine.toml"
    assert main(["cp", "speed-legacy", str(method)]) == 0
    sampler = tmp_path / "neyman.toml"
    assert main(["cp", "neyman", str(sampler)]) == 0
    sampler.write_text(sampler.read_text().replace("# strata = 20", "strata = 5"))
    assert parse_method(str(sampler)).sampler.parameters == {"strata": 5}
    assert main(["train", "fashion16", *SMALL, f"method={method}", f"out={tmp_path / 'run2'}"]) == 0


def test_things_that_are_not_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a run" in refused(capsys, "evaluate", str(tmp_path))
    assert "is not a run" in refused(capsys, "generate", str(tmp_path / "no"), "--out", "x.png")
    (tmp_path / "recipe.json").write_text("{broken")
    assert "not valid" in refused(capsys, "evaluate", str(tmp_path))


def test_five_mistakes_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lr=-1", "bach=64", "steps=many", "method=min-srn", "process=linaer", f"out={tmp_path / 'x'}"]
    assert "5 mistakes" in refused(capsys, "train", "fashion16", *words)
    assert not (tmp_path / "x").exists()


def test_tensorboard_by_one_option(tmp_path: Path) -> None:
    words = [*SMALL, "tracker=tensorboard", "samples=2", "sample_every=1", "sample_steps=2", "bands=2"]
    assert main(["train", "fashion16", *words, f"out={tmp_path / 'run'}"]) == 0
    files = [str(path) for path in (tmp_path / "run").rglob("events.out.tfevents*")]
    shown = {file: EventAccumulator(str(file)).Reload().Tags() for file in files}
    tags = {tag for found in shown.values() for kind in ("scalars", "images") for tag in found[kind]}
    assert {"samples", "timesteps drawn", "held_out_loss/u 0.50-1.00", "images_per_second"} <= tags


def test_a_run_is_a_workload_to_go_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", "fashion16", *SMALL, "steps=2", f"out={run}"]) == 0
    assert main(["train", str(run), "steps=3"]) == 0
    assert main(["train", "--resume", str(run), "steps=4"]) == 0
    text = capsys.readouterr().out
    assert "Resumed at step 2." in text
    assert f"{run}: 4 steps" in text
    assert "Held-out simple loss" in text


def test_the_banner_says_what_was_settled_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["steps=20", "batch=4", "evaluate_images=4", "bands=2", "samples=0", "optimizer=adafactor"]
    assert main(["train", "fashion16", *words, f"out={tmp_path / 'run'}"]) == 0
    text = capsys.readouterr().out
    assert "20 of 4 images, adafactor at 0.002" in text
    assert "warm_up_steps=2, evaluate_every=1, checkpoint_every=5" in text


def test_a_mistake_is_told_before_torch_is_imported() -> None:
    code = "import sys, stepwell.cli.main as m; m.main(sys.argv[1:]); assert 'torch' not in sys.modules"
    words = ["train", "fashion16", "method=nowhere", "lr=-1", "optimizer=sgdd"]
    told = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "3 mistakes" in told.stderr

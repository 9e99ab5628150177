"""`stepwell data`, and training from what it makes, as a user types them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from autoencoders import saved

from stepwell.cli.main import main

SMALL = ["model=micro", "steps=2", "batch=4", "evaluate_every=2", "evaluate_images=4", "bands=4",
         "checkpoint_every=2", "samples=4", "sample_steps=2"]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, two autoencoders, and latents by one of them."""
    home = tmp_path_factory.mktemp("home")
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    np.savez(home / "images.npz", images=pixels, labels=np.arange(40) % 4)
    saved("AutoencoderKL", home / "vae")
    saved("AutoencoderKL", home / "other", seed=1)
    assert main(encode(home)) == 0
    return home


def encode(home: Path, *more: str, out: str = "latents") -> list[str]:
    words = ["data", "encode", str(home / "images.npz"), "--autoencoder", str(home / "vae")]
    return [*words, "--out", str(home / out), "--labels", "--shard", "16", *more]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_encode_says_what_it_made_and_what_to_do_next(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(encode(home)) == 0
    text = capsys.readouterr().out
    assert "36 images to train on and 4 held out, 4 classes, mean and deviation" in text
    assert "3x16x16 pixels to 4x8x8 latents" in text
    assert "4 shards in fp16" in text
    assert "deviations from" in text
    assert " dB\n" in text
    assert f"stepwell train images data={home / 'latents'} labels=true" in text


def test_a_dry_run_makes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(encode(home, "--dry-run", "--flips", out="planned")) == 0
    assert "mirrored too" in capsys.readouterr().out
    assert not (home / "planned").exists()


def test_train_and_generate_from_latents_end_in_images(home: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [
        "train",
        "images",
        f"data={home / 'latents'}",
        "labels=true",
        *SMALL,
        "sample_every=0",
        f"out={run}",
    ]
    assert main(words) == 0
    assert len(list((run / "samples").glob("*.png"))) == 1
    out = tmp_path / "images.npz"
    assert main(["generate", str(run), "--out", str(out), "-n", "3", "--steps", "2"]) == 0
    assert np.load(out)["images"].shape == (3, 16, 16, 3)


def test_training_needs_no_autoencoder_and_decoding_the_right_one(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latents = tmp_path / "latents"
    shutil.copytree(home / "vae", tmp_path / "vae")
    words = encode(home)
    words[words.index("--autoencoder") + 1] = str(tmp_path / "vae")
    words[words.index("--out") + 1] = str(latents)
    assert main(words) == 0
    shutil.move(tmp_path / "vae", tmp_path / "moved")
    train = ["train", "images", f"data={latents}", *SMALL, f"out={tmp_path / 'run'}"]
    assert main([*train, "samples=0"]) == 0
    error = refused(capsys, *train)
    assert "there is no autoencoder at" in error
    assert "If it was moved, say where it is: autoencoder=..." in error
    error = refused(capsys, *train, f"autoencoder={home / 'other'}")
    assert "has latents of another autoencoder" in error
    assert main([*train, f"autoencoder={tmp_path / 'moved'}"]) == 0


def test_show_tells_of_images_and_of_latents(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", str(home / "images.npz"), "--labels"]) == 0
    assert "36 images to train on and 4 held out, 3x16x16, 4 classes" in capsys.readouterr().out
    assert main(["data", "show", str(home / "latents")]) == 0
    text = capsys.readouterr().out
    assert "4 classes, mean and deviation" in text
    assert "all shards match their checksums" in text


def test_show_tells_of_damage_and_the_command_repairs_it(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latents = tmp_path / "latents"
    shutil.copytree(home / "latents", latents)
    (latents / "train-00001.safetensors").unlink()
    error = refused(capsys, "data", "show", str(latents))
    assert "train-00001.safetensors is missing" in error
    command = error.split("Repair it with: stepwell ")[1].split()
    assert main(command) == 0
    assert main(["data", "show", str(latents)]) == 0


def test_an_unfinished_cache_is_told_with_the_command_that_finishes_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepwell.data.encode.write_shard", stop)
    assert main(encode(home, out="half")) == 130
    monkeypatch.undo()
    error = refused(capsys, "data", "show", str(home / "half"))
    assert "is unfinished" in error
    error = refused(capsys, "train", "images", f"data={home / 'half'}", *SMALL, f"out={home / 'run'}")
    command = error.split("Finish it with: stepwell ")[1].split()
    assert main(command) == 0
    assert main(["data", "show", str(home / "half")]) == 0


def test_bad_input_is_one_line(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "multiple of 2" in refused(capsys, *encode(home, "--size", "15", out="odd"))
    assert "another --out" in refused(capsys, *encode(home, "--dtype", "fp32"))
    wrong = encode(home, "--autoencoder", str(tmp_path / "nowhere"))
    assert "there is no autoencoder at" in refused(capsys, *wrong)
    assert "scale must be" in refused(capsys, *encode(home, "--scale", "big"))
    assert "shard must be" in refused(capsys, *encode(home, "--shard", "0"))
    assert "batch must be" in refused(capsys, *encode(home, "--batch", "0"))
    assert "not found" in refused(capsys, "data", "show", str(tmp_path / "nowhere"))
    train = ["train", "images", f"data={home / 'latents'}", *SMALL, f"out={tmp_path / 'run'}"]
    assert "size=32 cannot change that" in refused(capsys, *train, "size=32")


def test_images_of_mixed_sizes_ask_for_a_size(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for number, size in enumerate(((16, 16), (20, 24), (32, 16))):
        Image.new("RGB", size, (number * 50, 9, 9)).save(tmp_path / "photos" / f"{number}.png")
    words = ["data", "encode", str(tmp_path / "photos"), "--autoencoder", str(home / "vae")]
    words += ["--out", str(tmp_path / "latents")]
    assert "size" in refused(capsys, *words)
    assert main([*words, "--size", "16"]) == 0


@pytest.mark.slow
def test_torchrun_deals_the_shards(home: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run([*words, "-m", "stepwell", *encode(home, out="two")], check=True)
    for path in (home / "latents").glob("*.safetensors"):
        assert path.read_bytes() == (home / "two" / path.name).read_bytes()

"""A small home for fuzzed commands: one real run, and one of every file that a command reads."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from autoencoders import saved
from PIL import Image

from stepwell.cli.main import main

WORKLOAD = """# A workload for tests.
data = "images.npz"
model = "micro"
steps = 2
batch = 2
evaluate_every = 1
evaluate_images = 2
bands = 2
checkpoint_every = 1
samples = 1
sample_steps = 2
workers = 1
"""
METHOD = """# A method for tests.
[sampler]
name = "logit-normal"
mean = 0.5
stratified = true

[weighting]
name = "min-snr"
gamma = 5.0
"""
STUDY = """# A study for tests.
name = "mine"
methods = ["uniform", "min-snr"]
seeds = [0, 1]
baseline = "uniform"
metric = "simple"
workloads = ["small.toml"]

[settings]
steps = 2

[against]
min-snr = "uniform"

[judged_by]
min-snr = "min-snr"

[tune]
lr = [1e-3, 2e-3]
seeds = [100]
share = 0.5

[effort]
generated = 0
"""


def make_home(home: Path) -> Path:
    """Fill a folder; takes a few seconds."""
    home.mkdir(parents=True, exist_ok=True)
    drawn = np.random.default_rng(0)
    grey = drawn.integers(0, 256, (40, 16, 16), dtype=np.uint8)
    np.savez(home / "images.npz", images=grey, labels=np.arange(40) % 4)
    np.savez_compressed(home / "packed.npz", images=grey)
    colour = drawn.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)
    np.savez(home / "colour.npz", images=colour, labels=np.arange(12) % 2)
    for row, image in enumerate(grey[:8]):
        folder = home / "photos" / ("cats", "dogs")[row % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{row}.png")
    features = drawn.standard_normal((300, 64))
    np.savez(home / "statistics.npz", mu=features.mean(0), sigma=np.cov(features.T))
    pairs = "".join(f"{t},{1 / (1 + t):.4f}\n" for t in range(0, 1000, 10))
    (home / "log.csv").write_text(f"timestep,loss\n{pairs}")
    for name, text in (("small", WORKLOAD), ("method", METHOD), ("study", STUDY)):
        (home / f"{name}.toml").write_text(text)
    saved("AutoencoderKL", home / "vae")
    before = Path.cwd()
    os.chdir(home)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            for words in _MADE:
                assert main(words) == 0, words
    finally:
        os.chdir(before)
    return home


_MADE = (
    ["train", "small.toml", "method=neyman", "out=run"],
    ["compare", "small.toml", "methods=uniform", "seeds=1", "samples=0", "out=runs/mine", "--workers", "1"],
    ["export", "run", "--out", "pipeline"],
    ["data", "encode", "colour.npz", "--autoencoder", "vae", "--out", "latents", "--shard", "8", "--labels"],
)

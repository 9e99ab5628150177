"""Stable Diffusion's kind of folder is tuned by LoRA on captioned latents, and runs in its pipeline again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from autoencoders import saved as saved_autoencoder
from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from peft import PeftModel
from text_encoders import CAPTIONS, WIDTH, captioned_images, saved_text_encoder
from transformers import CLIPTextModel, CLIPTokenizer

from stepwell.cli.main import main

pytestmark = pytest.mark.full
FACTOR = "0.18215"


def saved_pipeline(folder: Path) -> Path:
    """A random Stable Diffusion of a few hundred kB for 16x16 pictures, as its pipeline saves itself."""
    parts = folder.parent
    saved_text_encoder(parts / "text")
    torch.manual_seed(0)
    StableDiffusionPipeline(
        vae=AutoencoderKL.from_pretrained(saved_autoencoder("AutoencoderKL", parts / "vae")),
        text_encoder=CLIPTextModel.from_pretrained(parts / "text" / "text_encoder"),
        tokenizer=CLIPTokenizer.from_pretrained(parts / "text" / "tokenizer"),
        unet=UNet2DConditionModel(
            sample_size=8,
            block_out_channels=(8, 16),
            layers_per_block=1,
            norm_num_groups=4,
            attention_head_dim=2,
            cross_attention_dim=WIDTH,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        ),
        scheduler=PNDMScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            skip_prk_steps=True,
            steps_offset=1,
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)
    return folder


def test_a_pipeline_is_tuned_and_runs_again(tmp_path: Path) -> None:
    base = saved_pipeline(tmp_path / "base")
    data = captioned_images(tmp_path / "data", size=16)
    latents, run = tmp_path / "latents", tmp_path / "run"
    words = [str(data), "--autoencoder", str(base), "--captions", "--scale", FACTOR, "--out", str(latents)]
    assert main(["data", "encode", *words]) == 0
    settings = {"data": latents, "captions": "true", "from": base, "lora": 2, "lr": 0.01, "steps": 3}
    settings |= {"precision": "no", "batch": 4, "samples": 4, "sample_steps": 4, "out": run}
    # accelerate keeps the precision of the first run for the whole process.
    AcceleratorState._reset_state(reset_partial_state=True)
    assert main(["train", "latents", *(f"{name}={value}" for name, value in settings.items())]) == 0
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["process"] == "scaled-linear"
    assert recipe["text_encoder"] == str(base)
    assert main(["export", str(run), "--adapters"]) == 0
    assert main(["generate", str(run), "--prompt", CAPTIONS[0], "-n", "2", "--out", str(run / "x.npz")]) == 0
    pipeline = StableDiffusionPipeline.from_pretrained(base)
    before = images(pipeline)
    pipeline.unet = PeftModel.from_pretrained(pipeline.unet, str(run / "adapters"))
    assert (images(pipeline) - before).abs().max() > 1e-3


def images(pipeline: Any) -> torch.Tensor:
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    made = pipeline(
        CAPTIONS[0], num_inference_steps=3, output_type="np", generator=generator, height=16, width=16
    )
    return torch.from_numpy(made.images)

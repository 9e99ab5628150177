"""diffusers' `examples/unconditional_image_generation/train_unconditional.py`, whole, on random images."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import hosts.torchvision_without_cuda  # noqa: F401
import torch
from hosts.check import Host, Stopped, Tape, main, taped_backward
from hosts.patch import diff_of
from hosts.pictures import write_pictures
from hosts.scripts import arguments, load

from stepwell.pacer.pace import Pace

SOURCE = ("huggingface/diffusers", "d035dcd7cc7c88e0a154609b62887d50bba9fdc2")
SCRIPT = Path("source/examples/unconditional_image_generation/train_unconditional.py")
DIFF = diff_of("diffusers-scripts", "train_unconditional.py")
Note = Callable[[torch.Tensor], None]
BATCH = 8
TINY = {
    "_class_name": "UNet2DModel",
    "sample_size": 8,
    "in_channels": 3,
    "out_channels": 3,
    "layers_per_block": 1,
    "block_out_channels": [16, 32],
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    "norm_num_groups": 8,
}


def train(folder: Path, updates: int, tape: Note, diff: str, *more: str) -> None:
    """The script's `main`, with one epoch of as many batches as there are updates."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(TINY))
    if not (folder / "images").exists():
        write_pictures(folder / "images", updates * BATCH, size=8)
    module = load(SCRIPT, diff)
    words = [f"--train_data_dir={folder}/images", f"--cache_dir={folder}/cache", f"--output_dir={folder}/out"]
    words += [f"--model_config_name_or_path={model}", f"--train_batch_size={BATCH}", "--resolution=8"]
    words += ["--center_crop", "--num_epochs=1", "--learning_rate=0.001", "--lr_warmup_steps=0", "--use_ema"]
    words += ["--ddpm_num_inference_steps=2", "--eval_batch_size=1", "--checkpointing_steps=30"]
    with arguments(*words, *more), taped_backward(tape):
        module.main(module.parse_args())


def published(updates: int, tape: Tape) -> None:
    """As it is."""
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), updates, tape, "")


def paced(updates: int, tape: Tape) -> None:
    """With the page's diff."""
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), updates, tape, DIFF)


def resumed(updates: int, tape: Tape) -> None:
    """Stopped after the checkpoint in the middle, and begun again with --resume_from_checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(Path(folder), updates, tape.until(updates // 2), DIFF)
        except Stopped:
            train(Path(folder), updates, tape, DIFF, "--resume_from_checkpoint=latest")


@contextmanager
def fed(paces: Iterator[Pace]) -> Iterator[None]:
    """`torch.randint`, by which the script draws its timesteps."""

    own = torch.randint

    def randint(low: int, high: int, size: tuple[int, ...], **kwargs: Any) -> torch.Tensor:
        if (low, high, size) == (0, 1000, (BATCH,)):
            return next(paces).timesteps
        return own(low, high, size, **kwargs)

    with mock.patch.object(torch, "randint", randint):
        yield


main(
    Host(
        name="diffusers, unconditional",
        version=f"diffusers {version('diffusers')}",
        ran=(
            "its script `train_unconditional.py`, whole: `UNet2DModel` (16 and 32 channels), "
            "`DDPMScheduler`, `EMAModel`, accelerate, data sets, checkpoints, tensorboard, a picture"
        ),
        left_out="nothing of the script; the data are 480 random images of 8x8",
        diff=DIFF,
        published=published,
        paced=paced,
        fed=fed,
        resumed=resumed,
    )
)

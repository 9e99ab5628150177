"""flow_matching's own image example (`examples/image/train.py`), whole, on a folder of random images."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import hosts.torchvision_without_cuda  # noqa: F401
import torch
from hosts.check import Host, Tape, main, taped_backward
from hosts.patch import diff_of
from hosts.pictures import write_pictures
from hosts.scripts import arguments, load

from stepwell.pacer.pace import Pace

SOURCE = ("facebookresearch/flow_matching", "11568d37f8d5a080e12aa7b5305d9c35ae07d136")
EXAMPLE = Path("source/examples/image")
BATCH, IMAGES = 8, 80
DIFFS = {name: diff_of("flow-matching", name) for name in ("train.py", "training/train_loop.py")}
TINY = {
    "in_channels": 3,
    "model_channels": 32,
    "out_channels": 3,
    "num_res_blocks": 1,
    "attention_resolutions": [2],
    "dropout": 0.1,
    "channel_mult": [1, 2],
    "num_classes": 2,
    "num_heads": 2,
}
"""Of its UNetModel, in the place of the 192 channels that it has for ImageNet."""


def train(updates: int, tape: Tape, paced: bool) -> None:
    """`main` of train.py: epochs over a folder of images, as many as make the updates."""
    sys.path.insert(0, str(EXAMPLE))
    loop = load(EXAMPLE / "training" / "train_loop.py", DIFFS["training/train_loop.py"] if paced else "")
    script = load(EXAMPLE / "train.py", DIFFS["train.py"] if paced else "")
    script.train_one_epoch = loop.train_one_epoch
    epochs = updates // (IMAGES // BATCH)
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder) / "images", IMAGES, size=8, classes=2)
        words = [
            "--dataset=imagenet",
            f"--data_path={folder}/images",
            f"--batch_size={BATCH}",
            "--device=cpu",
        ]
        words += [f"--epochs={epochs}", f"--output_dir={folder}", "--num_workers=0", "--no_pin_mem"]
        with arguments(*words, "--eval_frequency=-1", "--use_ema", "--lr=0.001"):
            options = script.get_args_parser().parse_args()
        configs = sys.modules["models.model_configs"].MODEL_CONFIGS
        with mock.patch.dict(configs, imagenet=TINY), taped_backward(tape):
            script.main(options)


def published(updates: int, tape: Tape) -> None:
    """As it is."""
    train(updates, tape, paced=False)


def paced(updates: int, tape: Tape) -> None:
    """With the page's diffs."""
    train(updates, tape, paced=True)


@contextmanager
def fed(paces: Iterator[Pace]) -> Iterator[None]:
    """`torch.torch.rand`, by which the loop draws t and nothing else."""
    alias = SimpleNamespace(**{**vars(torch), "rand": lambda count: 1 - next(paces).u})
    with mock.patch.object(torch, "torch", alias):
        yield


main(
    Host(
        name="flow_matching",
        version=f"flow-matching {version('flow-matching')}, examples at 11568d3",
        ran=(
            "its script `examples/image/train.py`, whole: `train_one_epoch`, `CondOTProbPath`, `UNetModel` "
            "(32 channels), `EMA`, gradient scaler, labels dropped at random"
        ),
        left_out="ImageNet (80 random images of 8x8 instead), its evaluation (`--eval_frequency=-1`)",
        diff="\n".join(DIFFS.values()),
        published=published,
        paced=paced,
        fed=fed,
    )
)

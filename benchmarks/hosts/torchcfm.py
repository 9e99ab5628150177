"""TorchCFM's own CIFAR-10 script (`examples/images/cifar10/train_cifar10.py`), whole, on random images."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import hosts.torchvision_without_cuda  # noqa: F401
import torch
from absl import flags
from hosts.check import Host, Tape, main, taped_backward
from hosts.patch import diff_of
from hosts.scripts import load

from stepwell.pacer.pace import Pace

SOURCE = ("atong01/conditional-flow-matching", "3fd278f9ef2f02e17e107e5769130b6cb44803e2")
SCRIPT = Path("source/examples/images/cifar10/train_cifar10.py")
BATCH = 8
COARSE = torch.rand(64, 3, 4, 4, generator=torch.Generator().manual_seed(1)) * 2 - 1
IMAGES = torch.utils.data.TensorDataset(torch.nn.functional.interpolate(COARSE, 8), torch.zeros(64))
"""Coarse squares [3, 8, 8] in [-1, 1], where the script asks for CIFAR-10."""
DIFF = diff_of("torchcfm")


def train(updates: int, tape: Tape, diff: str) -> None:
    """The script's `train`, with its flags."""
    # The script defines its flags again whenever it is loaded.
    before = set(flags.FLAGS)
    module = load(SCRIPT, diff)
    own = set(flags.FLAGS) - before
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--total_steps={updates}", f"--batch_size={BATCH}", "--num_channel=32", "--num_workers=0"]
        flags.FLAGS(["train_cifar10", *words, "--save_step=0", "--warmup=10", f"--output_dir={folder}/"])
        with mock.patch.object(module.datasets, "CIFAR10", return_value=IMAGES), taped_backward(tape):
            module.train([])
    for name in own:
        delattr(flags.FLAGS, name)


def published(updates: int, tape: Tape) -> None:
    """As it is."""
    train(updates, tape, "")


def paced(updates: int, tape: Tape) -> None:
    """With the page's diff."""
    train(updates, tape, DIFF)


@contextmanager
def fed(paces: Iterator[Pace]) -> Iterator[None]:
    """`torch.rand`, which the matcher calls for its t."""

    def rand(count: int) -> torch.Tensor:
        assert count == BATCH
        return 1 - next(paces).sigma

    with mock.patch.object(torch, "rand", rand):
        yield


main(
    Host(
        name="TorchCFM",
        version=f"torchcfm {version('torchcfm')}",
        ran=(
            "its script `train_cifar10.py`, whole: `ExactOptimalTransportConditionalFlowMatcher`, "
            "`UNetModelWrapper` (32 channels), warm-up, clipping, EMA"
        ),
        left_out=("CIFAR-10 (64 random images of 8x8 instead), samples and checkpoints (`--save_step=0`)"),
        diff=DIFF,
        published=published,
        paced=paced,
        fed=fed,
    )
)

"""Trains the classifier of fashion16 whose features ship with the package, and says how good it is.

Batch normalisation helps training and is folded into the convolutions afterwards, so that what ships is five
convolutions and a line. Writes src/stepwell/evaluate/fashion16_features.safetensors, in float16. No mirror
images: shoes all point to the left, and features should notice a model that turns them round.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from stepwell.evaluate.classifiers import FASHION16_FILE, FashionFeatures, load_fashion16

PACKAGE = Path(__file__).parent.parent / "src" / "stepwell"
EPOCHS, BATCH, RATE, DECAY, SMOOTHING = 40, 128, 4e-3, 0.05, 0.1
SHIFT, NOISE = 1, 0.1
LARGEST = 500_000


class Trainee(nn.Module):
    """The network that ships, with a normalisation after every convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = FashionFeatures()
        self.norms = nn.ModuleList(nn.BatchNorm2d(layer.out_channels) for layer in self.inner.convolutions)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (x + 1) / 2
        for convolution, norm in zip(self.inner.convolutions, self.norms, strict=True):
            hidden = F.relu(norm(convolution(hidden)))
        return self.inner.classifier(hidden.mean((2, 3)))

    def folded(self) -> FashionFeatures:
        """The same function without normalisations."""
        self.eval()
        result = FashionFeatures()
        result.classifier = self.inner.classifier
        pairs = zip(self.inner.convolutions, self.norms, strict=True)
        result.convolutions = nn.ModuleList(fuse_conv_bn_eval(layer, norm) for layer, norm in pairs)
        return result.eval()


def images(prefix: str) -> tuple[Tensor, Tensor]:
    """Images in [-1, 1] [N, 1, 16, 16] and labels [N] of the embedded data."""
    with np.load(PACKAGE / "data" / "fashion16.npz") as stored:
        pixels = torch.from_numpy(stored[prefix + "images"]).reshape(-1, 1, 16, 16)
        return pixels.float() / 127.5 - 1, torch.from_numpy(stored[prefix + "labels"]).long()


def varied(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to a pixel, under a little noise."""
    count, size = len(x), x.shape[-1]
    padded = F.pad(x, (SHIFT,) * 4, value=-1.0)[:, 0]
    down, right = torch.randint(0, 2 * SHIFT + 1, (2, count, 1), generator=generator)
    along = torch.arange(size)
    moved = padded[torch.arange(count)[:, None, None], (down + along)[:, :, None], (right + along)[:, None]]
    level = NOISE * torch.rand(count, 1, 1, generator=generator)
    return (moved + level * torch.randn(moved.shape, generator=generator))[:, None]


def train(x: Tensor, labels: Tensor) -> FashionFeatures:
    """One cycle of AdamW."""
    torch.manual_seed(0)
    generator, network = torch.Generator().manual_seed(0), Trainee()
    steps = EPOCHS * (len(x) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=DECAY)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in torch.randperm(len(x), generator=generator)[: len(x) // BATCH * BATCH].split(BATCH):
            scores = network(varied(x[rows], generator))
            loss = F.cross_entropy(scores, labels[rows], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cycle.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total / (len(x) // BATCH):.4f}", flush=True)
    return network.folded()


def accuracy(network: FashionFeatures, x: Tensor, labels: Tensor) -> float:
    """The share of images whose class gets the highest score."""
    with torch.no_grad():
        return float((network.logits(x).argmax(1) == labels).double().mean())


def main() -> None:
    """Train, write, read back what was written, and measure that."""
    torch.set_num_threads(1)
    start, path = time.perf_counter(), PACKAGE / "evaluate" / FASHION16_FILE
    network = train(*images(""))
    # save_file would make a file that only its owner can read.
    path.write_bytes(save({name: values.half() for name, values in network.state_dict().items()}))
    size = path.stat().st_size
    assert size < LARGEST, f"{size:,} bytes are too many to ship"
    print(f"{path.name}: {sum(p.numel() for p in network.parameters()):,} parameters, {size:,} bytes")
    shipped = load_fashion16()
    for name, prefix in (("training", ""), ("held-out", "held_out_")):
        print(f"accuracy on {name} images: {accuracy(shipped, *images(prefix)):.2%}")
    print(f"took {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()

"""Features of 16x16 grey images: a small classifier of fashion16, fixed and shipped with the package.

Trained by `benchmarks/make_features.py` on the 12,000 training images; it names the class of 90.45 % of the
2,000 held-out images. Distances on its features compare models of fashion16 with each other and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core import require
from stepwell.core.digest import weights_digest
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.data.source import to_unit
from stepwell.evaluate import inception, resnet_cifar, weights
from stepwell.runs.metrics import FRECHET

FILE = "fashion16_features.safetensors"
DIMENSIONS = 64
_LAYERS = ((1, 32, 1), (32, 32, 2), (32, 64, 1), (64, 64, 2), (64, DIMENSIONS, 1))
"""Channels in, channels out and stride of each convolution."""
_SHAPE = (1, 16, 16)


class FashionFeatures(nn.Module):
    """Five convolutions, averaged over the image: 64 features, from which a line tells ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(given, made, 3, stride, padding=1) for given, made, stride in _LAYERS
        )
        self.classifier = nn.Linear(DIMENSIONS, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The features [B, 64] of images [B, 1, 16, 16] in [-1, 1]."""
        if x.dim() != 4 or tuple(x.shape[1:]) != _SHAPE:
            raise Unsupported(
                f"these features know 16x16 grey images [B, 1, 16, 16] only, not {tuple(x.shape)}: "
                "give your own feature network, or compare by held-out loss."
            )
        # Padding is 0, and so must the black background be.
        hidden = (x + 1) / 2
        for convolution in self.convolutions:
            hidden = F.relu(convolution(hidden))
        return hidden.mean((2, 3))

    def logits(self, x: Tensor) -> Tensor:
        """The scores [B, 10] of the classes."""
        scores: Tensor = self.classifier(self(x))
        return scores


def load_features() -> FashionFeatures:
    """The shipped network, in float32 and eval mode, with fixed weights."""
    stored = load((files("stepwell.evaluate") / FILE).read_bytes())
    network = FashionFeatures()
    network.load_state_dict({name: values.to(torch.float32) for name, values in stored.items()})
    return network.eval().requires_grad_(False)


def clean(images: Tensor, size: int) -> Tensor:
    """Antialiased bicubic in float, as Pillow's mode F; float64, since torch's float32 is off by 1e-5."""
    fitted = F.interpolate(images.double(), (size, size), mode="bicubic", antialias=True, align_corners=False)
    return fitted.clamp_(0, 255).float()


def legacy(images: Tensor, size: int) -> Tensor:
    """Bilinear between pixel centres: too coarse a comb where images shrink, hence the name."""
    return F.interpolate(images.float(), (size, size), mode="bilinear", align_corners=False)


def legacy_tf(images: Tensor, size: int) -> Tensor:
    """TensorFlow 1's bilinear: pixel i of the result is at i * height / size, so images shift."""
    return _blended(_blended(images.float(), size, 2), size, 3)


def _blended(images: Tensor, size: int, dimension: int) -> Tensor:
    given = images.shape[dimension]
    place = torch.arange(size, dtype=torch.float32, device=images.device) * (given / size)
    first = place.floor().long()
    share = (place - first).reshape([-1 if axis == dimension else 1 for axis in range(4)])
    low = images.index_select(dimension, first)
    high = images.index_select(dimension, (first + 1).clamp(max=given - 1))
    return low + (high - low) * share


RESIZINGS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "clean": clean,
    "legacy": legacy,
    "legacy-tf": legacy_tf,
}


def resized(images: Tensor, size: int, how: str) -> Tensor:
    """uint8 images [B, C, H, W] as floats [B, C, size, size] from 0 to 255."""
    require.one_of("resizing", how, list(RESIZINGS))
    if tuple(images.shape[2:]) == (size, size):
        return images.float()
    return RESIZINGS[how](images, size)


def inception_range(images: Tensor, how: str) -> Tensor:
    """0 to 255 as each program scales it: pytorch-fid to [-1, 1], the others by (x - 128) / 128."""
    return images / 127.5 - 1 if how == "legacy" else (images - 128) / 128


NAMES = ("inception", "resnet20-cifar10", "fashion16")


@dataclass(frozen=True)
class Extractor:
    """uint8 images [B, C, H, W] of any size to features [B, D]."""

    name: str
    identity: str
    """Name, digest of the weights, resizing: features of different identities cannot be compared."""
    dimensions: int
    size: int
    """Height and width that the network sees."""
    channels: int
    network: nn.Module
    prepare: Callable[[Tensor], Tensor]
    """uint8 images to the network's input."""
    device: str | torch.device = "cpu"

    @property
    def title(self) -> str:
        """What the Fréchet distance on these features may be called."""
        return FRECHET.name(self.name)

    def on(self, device: str | torch.device) -> Extractor:
        """The same extractor, working on another device; features come back to the CPU."""
        return replace(self, network=self.network.to(device), device=device)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        if images.dtype != torch.uint8 or images.dim() != 4:
            raise InvalidParameter(
                f"images must be uint8 [B, C, H, W], not {images.dtype} {list(images.shape)}."
            )
        if images.shape[1] == 1 and self.channels == 3:
            images = images.expand(-1, 3, -1, -1)
        if images.shape[1] != self.channels:
            raise Unsupported(
                f"{self.name} looks at images of {self.channels} channel{'s' * (self.channels > 1)}, and "
                f"these have {images.shape[1]}: choose another extractor."
            )
        # TF32 would move features by 1e-3, and with them a number that is compared between papers.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            features: Tensor = self.network(self.prepare(images.to(self.device)))
        if features.shape != (len(images), self.dimensions):
            raise InvalidParameter(
                f"{self.name} made {list(features.shape)} of {len(images)} images, and must make "
                f"[{len(images)}, {self.dimensions}]."
            )
        return features.float().cpu()


def extractor(
    which: str | nn.Module,
    weights: str | Path | None = None,
    *,
    resize: str = "clean",
    size: int | None = None,
) -> Extractor:
    """`inception`, `resnet20-cifar10`, `fashion16`, or a module of your own: [-1, 1] at `size` to [B, D]."""
    require.one_of("resizing", resize, list(RESIZINGS))
    if isinstance(which, nn.Module):
        return _of_module(which, resize, size)
    require.one_of("extractor", which, NAMES)
    if which == "inception":
        return _inception(weights, resize)
    if which == "resnet20-cifar10":
        return _resnet20(weights, resize)
    return _fashion16(weights, resize)


def _inception(given: str | Path | None, resize: str) -> Extractor:
    path = weights.find("inception", given)
    stored, digest = weights.read("inception", path, inception.expected_shapes())

    def prepare(images: Tensor) -> Tensor:
        return inception_range(resized(images, inception.SIZE, resize), resize)

    network = inception.load_inception(stored)
    identity = _identity("inception", digest, resize)
    return Extractor("inception", identity, inception.DIMENSIONS, inception.SIZE, 3, network, prepare)


def _resnet20(given: str | Path | None, resize: str) -> Extractor:
    name = "resnet20-cifar10"
    stored, digest = weights.read(name, weights.find(name, given), resnet_cifar.expected_shapes())
    network = resnet_cifar.load_resnet20(stored)

    def prepare(images: Tensor) -> Tensor:
        return resized(images, resnet_cifar.SIZE, resize)

    identity = _identity(name, digest, resize)
    return Extractor(name, identity, resnet_cifar.DIMENSIONS, resnet_cifar.SIZE, 3, network, prepare)


def _fashion16(given: str | Path | None, resize: str) -> Extractor:
    if given is not None:
        raise InvalidParameter("fashion16 ships with its weights: leave --weights out.")
    network = load_features()

    def prepare(images: Tensor) -> Tensor:
        return resized(images, 16, resize) / 127.5 - 1

    identity = _identity("fashion16", _digest(network), resize)
    return Extractor("fashion16", identity, DIMENSIONS, 16, 1, network, prepare)


def _of_module(network: nn.Module, resize: str, size: int | None) -> Extractor:
    if size is None:
        raise InvalidParameter("a module of your own needs size=: the height and width that it looks at.")
    network = network.eval()

    def prepare(images: Tensor) -> Tensor:
        if tuple(images.shape[2:]) == (size, size):
            return to_unit(images)
        return resized(images, size, resize) / 127.5 - 1

    with torch.no_grad():
        made = network(torch.zeros(1, 3, require.count("size", size), size))
    if not isinstance(made, Tensor) or made.dim() != 2:
        raise InvalidParameter("a module of your own must return features [B, D].")
    name = type(network).__name__
    identity = _identity(name, _digest(network), resize)
    return Extractor(name, identity, made.shape[1], size, 3, network, prepare)


def _identity(name: str, digest: str, resize: str) -> str:
    return f"{name} {digest[:16]} {resize}"


def _digest(network: nn.Module) -> str:
    return weights_digest(network.state_dict(), hashlib.sha256(), "{name} {dtype} {shape}")

"""Feature extractors: uint8 images of any size, resized as each reference program does it, to features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core import require
from stepwell.core.digest import weights_digest
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.data.source import to_unit
from stepwell.evaluate import classifiers, inception, weights
from stepwell.runs.metrics import EXTRACTORS, FRECHET


def clean(images: Tensor, size: int) -> Tensor:
    """clean-fid's antialiased bicubic (Pillow's mode F), in float64: torch's float32 is off by 1e-5."""
    fitted = F.interpolate(images.double(), (size, size), mode="bicubic", antialias=True, align_corners=False)
    return fitted.clamp_(0, 255).float()


def legacy(images: Tensor, size: int) -> Tensor:
    """pytorch-fid's bilinear, without antialiasing."""
    return F.interpolate(images.float(), (size, size), mode="bilinear", align_corners=False)


def legacy_tf(images: Tensor, size: int) -> Tensor:
    """TensorFlow 1's bilinear: pixel i of the result is at i * height / size, so images shift."""
    return _interpolated(_interpolated(images.float(), size, 2), size, 3)


def _interpolated(images: Tensor, size: int, dimension: int) -> Tensor:
    length = images.shape[dimension]
    place = torch.arange(size, dtype=torch.float32, device=images.device) * (length / size)
    first = place.floor().long()
    share = (place - first).reshape([-1 if axis == dimension else 1 for axis in range(4)])
    low = images.index_select(dimension, first)
    high = images.index_select(dimension, (first + 1).clamp(max=length - 1))
    return low + (high - low) * share


RESIZINGS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "clean": clean,
    "legacy": legacy,
    "legacy-tf": legacy_tf,
}


def resized(images: Tensor, size: int, resize: str) -> Tensor:
    """uint8 images [B, C, H, W] as floats [B, C, size, size] from 0 to 255."""
    require.one_of("resizing", resize, list(RESIZINGS))
    if tuple(images.shape[2:]) == (size, size):
        return images.float()
    return RESIZINGS[resize](images, size)


def inception_range(images: Tensor, resize: str) -> Tensor:
    """0 to 255 as each program scales it: pytorch-fid to [-1, 1], the others by (x - 128) / 128."""
    return images / 127.5 - 1 if resize == "legacy" else (images - 128) / 128


@dataclass(frozen=True)
class Extractor:
    """uint8 images [B, C, H, W] of any size to features [B, D]."""

    name: str
    identity: str
    """Name, digest of the weights, resizing: features of different identities cannot be compared."""
    dimensions: int
    size: int
    """Height and width of the network's input."""
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
        """The same extractor on another device; features come back to the CPU."""
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
                f"{self.name} takes images with {self.channels} channel{'s' * (self.channels > 1)}, and "
                f"these have {images.shape[1]}: choose another extractor."
            )
        # TF32 would change features by 1e-3, and with them a number that is compared between papers.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            features: Tensor = self.network(self.prepare(images.to(self.device)))
        if features.shape != (len(images), self.dimensions):
            raise InvalidParameter(
                f"{self.name} returned {list(features.shape)} for {len(images)} images, and must return "
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
    require.one_of("extractor", which, EXTRACTORS)
    if which == "inception":
        return _inception(weights, resize)
    if which == "resnet20-cifar10":
        return _resnet20(weights, resize)
    return _fashion16(weights, resize)


def _inception(path: str | Path | None, resize: str) -> Extractor:
    name, size = "inception", inception.SIZE
    stored, digest = weights.read(name, weights.find(name, path), inception.expected_shapes())
    return Extractor(
        name,
        _identity(name, digest, resize),
        inception.DIMENSIONS,
        size,
        channels=3,
        network=inception.load_inception(stored),
        prepare=lambda images: inception_range(resized(images, size, resize), resize),
    )


def _resnet20(path: str | Path | None, resize: str) -> Extractor:
    name, size = "resnet20-cifar10", classifiers.RESNET20_SIZE
    stored, digest = weights.read(name, weights.find(name, path), classifiers.resnet20_shapes())
    return Extractor(
        name,
        _identity(name, digest, resize),
        classifiers.DIMENSIONS,
        size,
        channels=3,
        network=classifiers.load_resnet20(stored),
        prepare=lambda images: resized(images, size, resize),
    )


def _fashion16(path: str | Path | None, resize: str) -> Extractor:
    if path is not None:
        raise InvalidParameter("fashion16 ships with its weights: leave --weights out.")
    name, size, network = "fashion16", classifiers.FASHION16_SIZE, classifiers.load_fashion16()
    return Extractor(
        name,
        _identity(name, _digest(network), resize),
        classifiers.DIMENSIONS,
        size,
        channels=1,
        network=network,
        prepare=lambda images: resized(images, size, resize) / 127.5 - 1,
    )


def _of_module(network: nn.Module, resize: str, size: int | None) -> Extractor:
    if size is None:
        raise InvalidParameter("a module of your own needs size=, the height and width of its input.")
    network = network.eval()

    def prepare(images: Tensor) -> Tensor:
        if tuple(images.shape[2:]) == (size, size):
            return to_unit(images)
        return resized(images, size, resize) / 127.5 - 1

    with torch.no_grad():
        features = network(torch.zeros(1, 3, require.count("size", size), size))
    if not isinstance(features, Tensor) or features.dim() != 2:
        raise InvalidParameter("a module of your own must return features [B, D].")
    name = type(network).__name__
    identity = _identity(name, _digest(network), resize)
    return Extractor(name, identity, features.shape[1], size, 3, network, prepare)


def _identity(name: str, digest: str, resize: str) -> str:
    return f"{name} {digest[:16]} {resize}"


def _digest(network: nn.Module) -> str:
    """Stored features and statistics carry this digest: its format must not change."""
    return weights_digest(network.state_dict(), hashlib.sha256(), "{name} {dtype} {shape}")

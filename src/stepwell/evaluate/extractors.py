"""Networks that turn images into features, with all that a distance on them must say about itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from stepwell.core import require
from stepwell.core.errors import InvalidParameter, Unsupported
from stepwell.data.source import to_unit
from stepwell.evaluate import inception, resnet_cifar, weights
from stepwell.evaluate.features import DIMENSIONS as FASHION_DIMENSIONS
from stepwell.evaluate.features import load_features
from stepwell.evaluate.resizing import RESIZINGS, inception_range, resized

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
        if self.name == "inception":
            return "FID"
        return f"Fréchet distance on {self.name} features (not FID)"

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
    return Extractor("fashion16", identity, FASHION_DIMENSIONS, 16, 1, network, prepare)


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
    total = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        total.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()

"""Small classifiers whose features compare images: one of fashion16, shipped, and ResNet-20 of CIFAR-10."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core.errors import Unsupported

FASHION16_FILE = "fashion16_features.safetensors"
FASHION16_SIZE, RESNET20_SIZE = 16, 32
DIMENSIONS = 64
"""Features of either network."""
_FASHION16_LAYERS = ((1, 32, 1), (32, 32, 2), (32, 64, 1), (64, 64, 2), (64, DIMENSIONS, 1))
"""Input channels, output channels and stride of each convolution."""
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The channel statistics (ImageNet's) that ResNet-20 was trained with."""


class FashionFeatures(nn.Module):
    """Five convolutions and an average pool, trained by `benchmarks/make_features.py` on fashion16.

    A linear layer on its 64 features classifies 90.45 % of the 2,000 held-out images. Distances on them
    compare models of fashion16 with each other and nothing else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1) for inputs, outputs, stride in _FASHION16_LAYERS
        )
        self.classifier = nn.Linear(DIMENSIONS, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The features [B, 64] of images [B, 1, 16, 16] in [-1, 1]."""
        if tuple(x.shape[1:]) != (1, FASHION16_SIZE, FASHION16_SIZE):
            raise Unsupported(
                f"the fashion16 features take 16x16 grey images [B, 1, 16, 16] only, not {tuple(x.shape)}: "
                "use your own feature network, or compare by held-out loss."
            )
        # Padding is 0, and so must the black background be.
        hidden = (x + 1) / 2
        for convolution in self.convolutions:
            hidden = F.relu(convolution(hidden))
        return hidden.mean((2, 3))

    def logits(self, x: Tensor) -> Tensor:
        """The class scores [B, 10]."""
        scores: Tensor = self.classifier(self(x))
        return scores


def load_fashion16() -> FashionFeatures:
    """The shipped network, frozen, in float32 and eval mode."""
    stored = load((files("stepwell.evaluate") / FASHION16_FILE).read_bytes())
    network = FashionFeatures()
    network.load_state_dict({name: values.to(torch.float32) for name, values in stored.items()})
    return network.eval().requires_grad_(False)


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut without parameters: every other pixel, new channels 0 (option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self._stride, self._new = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        half = self._new // 2
        shortcut = F.pad(x[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, half, half))
        return F.relu(hidden + shortcut)


class ResNet20(nn.Module):
    """Images [B, 3, 32, 32] from 0 to 255 to the features [B, 64] before the last layer (He et al. 2015).

    With the parameter names of akamaster/pytorch_resnet_cifar10, whose weights classify 91.73 % of CIFAR-10's
    test images. A hundred times as fast as Inception.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(BasicBlock(16, 16, 1) for _ in range(3)))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), *(BasicBlock(32, 32, 1) for _ in range(2)))
        self.layer3 = nn.Sequential(BasicBlock(32, 64, 2), *(BasicBlock(64, 64, 1) for _ in range(2)))
        self.linear = nn.Linear(DIMENSIONS, 10)

    def forward(self, images: Tensor) -> Tensor:
        mean, deviation = (images.new_tensor(values)[:, None, None] for values in (_MEAN, _DEVIATION))
        hidden = F.relu(self.bn1(self.conv1((images / 255 - mean) / deviation)))
        features: Tensor = self.layer3(self.layer2(self.layer1(hidden))).mean((2, 3))
        return features

    def logits(self, images: Tensor) -> Tensor:
        """The class scores [B, 10]."""
        scores: Tensor = self.linear(self(images))
        return scores


def resnet20_shapes() -> dict[str, tuple[int, ...]]:
    """The tensors that a weights file must have, with their shapes."""
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in ResNet20().state_dict().items() if value.dim()}


def load_resnet20(stored: Mapping[str, Tensor]) -> ResNet20:
    """ResNet-20 with these weights, frozen, in float32 and eval mode."""
    network = ResNet20()
    network.load_state_dict({name: value.float() for name, value in stored.items()}, strict=False)
    return network.eval().requires_grad_(False)

"""Features of 16x16 grey images: a small classifier of fashion16, fixed and shipped with the package.

Trained by `benchmarks/make_features.py` on the 12,000 training images; it names the class of 90.45 % of the
2,000 held-out images. Distances on its features compare models of fashion16 with each other and nothing else.
"""

from __future__ import annotations

from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.core.errors import Unsupported

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

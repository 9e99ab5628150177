"""CIFAR-10's subset among the shared assets (10,000 images to train on, 2,000 held out) as an .npz.

    python benchmarks/make_cifar10_subset.py ASSETS runs/cifar10-subset.npz

The assets are sheets of 32x32 tiles, 50 in a row; they never become part of the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

TILE = 32


def tiles(sheet: Path) -> np.ndarray:
    """The images [N, 32, 32, 3] of a sheet, row by row."""
    pixels = np.asarray(Image.open(sheet).convert("RGB"))
    rows, columns = pixels.shape[0] // TILE, pixels.shape[1] // TILE
    return pixels.reshape(rows, TILE, columns, TILE, 3).swapaxes(1, 2).reshape(-1, TILE, TILE, 3)


def main() -> None:
    """Read, check, write."""
    if len(sys.argv) != 3:
        raise SystemExit(f"usage: {Path(sys.argv[0]).name} ASSETS_FOLDER OUT.npz")
    assets, out = Path(sys.argv[1]), Path(sys.argv[2])
    train, test = tiles(assets / "cifar10_10k_train.webp"), tiles(assets / "cifar10_2k_test.webp")
    out.parent.mkdir(parents=True, exist_ok=True)
    with np.load(assets / "cifar10_labels.npz") as labels:
        np.savez(
            out,
            images=train,
            labels=labels["train"],
            held_out_images=test,
            held_out_labels=labels["test"],
        )
    print(f"{out}: {len(train)} and {len(test)} images")


if __name__ == "__main__":
    main()

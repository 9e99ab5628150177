"""Oxford Flowers-102 as an .npz of images and labels.

    python benchmarks/make_flowers64.py ASSETS/flowers102_64_jpeg_q90_sheets.npz runs/flowers64.npz

The asset holds JPEG sheets of 64x64 centre crops, 32 in a row (`jpeg_00`, ...), and labels 1 to 102 in `y`.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

TILE = 64


def main(asset: Path, out: Path) -> None:
    """Cut the sheets into tiles; labels count from 0."""
    with np.load(asset) as stored:
        labels = stored["y"].astype(np.int64) - 1
        sheets = [stored[key] for key in sorted(stored.files) if key.startswith("jpeg_")]
    tiles = np.concatenate([_tiles(sheet.tobytes()) for sheet in sheets])[: len(labels)]
    np.savez(out, images=tiles, labels=labels)
    print(f"{out}: images {list(tiles.shape)}, {labels.max() + 1} classes")


def _tiles(jpeg: bytes) -> np.ndarray:
    """[N, 64, 64, 3], row by row."""
    sheet = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    down, across = sheet.shape[0] // TILE, sheet.shape[1] // TILE
    grid = sheet.reshape(down, TILE, across, TILE, 3).swapaxes(1, 2)
    return grid.reshape(down * across, TILE, TILE, 3)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Small random images on disk, for hosts that read folders."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image


def write_pictures(folder: Path, count: int, size: int, classes: int = 0) -> None:
    """Coarse coloured squares, the same every time; with `classes`, in a folder for each."""
    coarse = torch.randint(0, 256, (count, 4, 4, 3), generator=torch.Generator().manual_seed(1))
    for number, pixels in enumerate(coarse.to(torch.uint8)):
        inside = folder / str(number % classes) if classes else folder
        inside.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels.numpy()).resize((size, size), Image.Resampling.NEAREST)
        picture.save(inside / f"{number:04d}.png")

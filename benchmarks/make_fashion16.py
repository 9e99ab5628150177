"""Make src/stepwell/data/fashion16.npz, the images that ship with the package, from Fashion-MNIST.

    apt-get download dataset-fashion-mnist
    dpkg -x dataset-fashion-mnist_*.deb fm
    python benchmarks/make_fashion16.py fm/usr/share/datasets/fashion-mnist

28x28 gets a border of two black pixels and is halved: each pixel of 16x16 is the rounded mean of four.
The first images of each class, in the order of the original files. The same zlib makes the same bytes.
"""

from __future__ import annotations

import gzip
import io
import struct
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TARGET = Path(__file__).parent.parent / "src" / "stepwell" / "data" / "fashion16.npz"
PER_CLASS, HELD_OUT_PER_CLASS = 1200, 200
LARGEST_BYTES = 3_000_000
LICENCE = """\
Fashion-MNIST, https://github.com/zalandoresearch/fashion-mnist
The MIT License (MIT) Copyright © 2017 Zalando SE, https://tech.zalando.com

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the “Software”), to deal in the Software without restriction, including without
limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of
the Software, and to permit persons to whom the Software is furnished to do so, subject to the following
conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED “AS IS”, WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT
LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO
EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN
AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE
OR OTHER DEALINGS IN THE SOFTWARE.
"""


def stored(path: Path) -> NDArray[np.uint8]:
    """An array in the format of MNIST: 0, 0, type, dimensions, sizes, bytes."""
    raw = gzip.decompress(path.read_bytes())
    assert raw[:3] == b"\0\0\x08", f"{path} does not hold bytes in MNIST's format"
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def halved(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """28x28 as 16x16."""
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.uint16)
    sums: NDArray[np.uint16] = padded.reshape(-1, 16, 2, 16, 2).sum((2, 4), dtype=np.uint16)
    return ((sums + 2) // 4).astype(np.uint8)


def part(folder: Path, name: str, per_class: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The first `per_class` images of each class, in their original order, and their labels."""
    images, labels = (stored(folder / f"{name}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    chosen = np.sort(np.concatenate([np.flatnonzero(labels == kind)[:per_class] for kind in range(10)]))
    return halved(images[chosen]), labels[chosen]


def write(path: Path, arrays: dict[str, NDArray[np.generic]]) -> None:
    """np.savez_compressed with the strongest compression and no dates."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            stream = io.BytesIO()
            np.lib.format.write_array(stream, array, allow_pickle=False)
            archive.writestr(entry, stream.getvalue(), compresslevel=9)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    images, labels = part(folder, "train", PER_CLASS)
    held_out_images, held_out_labels = part(folder, "t10k", HELD_OUT_PER_CLASS)
    write(
        TARGET,
        {
            "images": images,
            "labels": labels,
            "held_out_images": held_out_images,
            "held_out_labels": held_out_labels,
            "licence": np.frombuffer(LICENCE.encode(), np.uint8),
        },
    )
    size = TARGET.stat().st_size
    print(f"{TARGET}: {len(images):,} + {len(held_out_images):,} images, {size:,} bytes")
    assert size < LARGEST_BYTES, f"{size:,} bytes is more than the package may carry ({LARGEST_BYTES:,})"


if __name__ == "__main__":
    main()

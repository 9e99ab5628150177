"""Fashion-MNIST at 16x16 (Xiao et al. 2017; MIT licence, kept inside the file), shipped with the package.

12,000 images to train on and 2,000 held out, ten classes; `benchmarks/make_fashion16.py` made it. Shoes all
point to the left, so mirror images are other data.
"""

from __future__ import annotations

from importlib.resources import as_file, files

from stepwell.data import npz
from stepwell.data.options import Options
from stepwell.data.source import DataSet

CLASSES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def read(options: Options) -> DataSet:
    """The embedded images."""
    with as_file(files("stepwell.data") / "fashion16.npz") as path:
        return npz.read(path, options, name="fashion16")

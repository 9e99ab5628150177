"""Autoencoders between images and latents: diffusers' classes and the TAESD family, loaded alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from stepwell.core.digest import weights_digest
from stepwell.core.errors import StepwellError
from stepwell.core.reading import place
from stepwell.models.hub import HUB, REFUSED
from stepwell.models.tiny_autoencoder import TinyAutoencoder, from_weights

_CLASSES = ("AutoencoderKL", "AutoencoderTiny", "VQModel")
_PARTS = ("vae", "vqvae", "movq")
"""Where pipelines of diffusers keep their autoencoder."""
_DECODED_AT_ONCE = 16


class BadAutoencoder(StepwellError, ValueError):
    """An autoencoder that cannot be loaded, or that images do not fit."""


@dataclass(frozen=True)
class Autoencoder:
    """An encoder and a decoder in float32, frozen."""

    name: str
    """Where it was loaded from; an absolute path if local."""
    network: nn.Module
    moments: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    """Images to the mean and standard deviation of their latents."""
    reconstruct: Callable[[Tensor], Tensor]
    channels: int
    factor: int
    """Pixels per latent, in height and in width."""
    posterior: bool
    """Whether an image has a distribution of latents (KL) rather than one latent."""
    image_channels: int = 3

    def __post_init__(self) -> None:
        self.network.eval().requires_grad_(False)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of names, shapes and values of all weights."""
        return weights_digest(self.network.state_dict(), sha256(), "{name} {shape} {dtype};")

    @torch.no_grad()
    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images [B, C, H, W] in [-1, 1] as mean and standard deviation (None without) [B, c, h, w]."""
        height, width = images.shape[-2:]
        if height % self.factor or width % self.factor:
            raise BadAutoencoder(
                f"{self.name} makes one latent of {self.factor}x{self.factor} pixels: images of "
                f"{height}x{width} do not fit. Give a size that is a multiple of {self.factor}."
            )
        self.network.to(images.device)
        return self.moments(images.to(torch.float32))

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Latents [B, c, h, w] as images [B, C, H, W] in [-1, 1]."""
        self.network.to(latents.device)
        pieces = latents.to(torch.float32).split(_DECODED_AT_ONCE)
        return torch.cat([self.reconstruct(piece) for piece in pieces]).clamp_(-1, 1)


def load_autoencoder(spec: str) -> Autoencoder:
    """A folder of diffusers, `hub:ORG/NAME[/PART]`, or FOLDER/NAME of NAME_encoder and NAME_decoder files."""
    if spec.startswith(HUB):
        return _of_hub(spec)
    path = place(spec).absolute()
    pair = _pair(path)
    if pair is not None:
        return _tiny(str(pair), pair)
    if not path.is_dir():
        raise BadAutoencoder(
            f"there is no autoencoder at {str(path)!r}: give a folder that diffusers saved (config.json and "
            "weights), FOLDER/NAME of NAME_encoder.safetensors and NAME_decoder.safetensors, or hub:ORG/NAME."
        )
    for folder in (path, *(path / part for part in _PARTS)):
        if (folder / "config.json").is_file():
            return _of_diffusers(str(folder), str(folder), {})
    raise BadAutoencoder(
        f"{str(path)!r} has no config.json, nor has a sub-folder {' or '.join(_PARTS)}: give the folder "
        "that save_pretrained of an autoencoder wrote."
    )


def _pair(path: Path) -> Path | None:
    """FOLDER/NAME of a pair of files, also if only their folder is given and there is one pair in it."""
    suffix = "_encoder.safetensors"
    if path.is_dir() and not (path / "config.json").exists():
        names = [file.name.removesuffix(suffix) for file in path.glob(f"*{suffix}")]
        if len(names) > 1:
            raise BadAutoencoder(
                f"{str(path)!r} has several autoencoders ({', '.join(sorted(names))}): give one, such as "
                f"{path / min(names)}."
            )
        return path / names[0] if names else None
    return path if path.with_name(path.name + suffix).is_file() else None


def _tiny(name: str, stem: Path) -> Autoencoder:
    files = [stem.with_name(f"{stem.name}_{part}.safetensors") for part in ("encoder", "decoder")]
    try:
        network = from_weights(load_file(files[0]), load_file(files[1]))
    except FileNotFoundError as error:
        raise BadAutoencoder(f"{stem.name} needs both its files: {files[1]} is not there.") from error
    except (OSError, SafetensorError) as error:
        raise BadAutoencoder(f"the weights of {name} cannot be read ({error}): copy them again.") from error
    except (KeyError, RuntimeError, IndexError) as error:
        first = str(error).splitlines()[0]
        raise BadAutoencoder(
            f"{name} is not of the TAESD family at 8 pixels a latent ({first}): give such a pair, or a "
            "folder of diffusers."
        ) from error
    return Autoencoder(
        name=name,
        network=network,
        moments=lambda images: (network.encode(images), None),
        reconstruct=network.decode,
        channels=network.channels,
        factor=TinyAutoencoder.factor,
        posterior=False,
    )


def _of_hub(spec: str) -> Autoencoder:
    organisation, _, rest = spec.removeprefix(HUB).partition("/")
    name, _, part = rest.partition("/")
    if not (organisation and name):
        raise BadAutoencoder(f"{spec!r} is no name on the hub: write hub:ORG/NAME or hub:ORG/NAME/PART.")
    return _of_diffusers(spec, f"{organisation}/{name}", {"subfolder": part} if part else {})


def _of_diffusers(name: str, source: str, more: dict[str, str]) -> Autoencoder:
    import diffusers

    try:
        config = diffusers.AutoencoderKL.load_config(source, **more)
    except (OSError, ValueError, RecursionError) as error:
        raise _not_loaded("autoencoder", name, error) from error
    kind = config.get("_class_name") if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise BadAutoencoder(f"{name} is {kind or 'of no class'}, and must be one of {', '.join(_CLASSES)}.")
    try:
        network, report = getattr(diffusers, kind).from_pretrained(
            source, torch_dtype=torch.float32, output_loading_info=True, **more
        )
    except REFUSED as error:
        raise _not_loaded("weights of", name, error) from error
    # diffusers only warns about these, and leaves them random.
    lost = [*report["missing_keys"], *report["mismatched_keys"]]
    if lost:
        raise BadAutoencoder(
            f"the weights of {name} do not fit its config.json: {len(lost)} are missing, such as {lost[0]}."
        )
    return _wrapped(name, kind, network)


def _wrapped(name: str, kind: str, network: Any) -> Autoencoder:
    def posterior(images: Tensor) -> tuple[Tensor, Tensor | None]:
        latents = network.encode(images).latent_dist
        return latents.mean, latents.std

    def plain(images: Tensor) -> tuple[Tensor, Tensor | None]:
        # VQModel: before quantisation, as LDM trains; its decoder quantises first.
        return network.encode(images).latents, None

    config = network.config
    codes = config.get("vq_embed_dim") if kind == "VQModel" else None
    widths = config.encoder_block_out_channels if kind == "AutoencoderTiny" else config.block_out_channels
    return Autoencoder(
        name=name,
        network=network,
        moments=posterior if kind == "AutoencoderKL" else plain,
        reconstruct=lambda latents: network.decode(latents).sample,
        channels=codes or config.latent_channels,
        factor=2 ** (len(widths) - 1),
        posterior=kind == "AutoencoderKL",
        image_channels=config.in_channels,
    )


def _not_loaded(part: str, name: str, error: Exception) -> BadAutoencoder:
    """The first 300 characters of diffusers' error, which may be a page long, and what to do."""
    remedy = " Check the connection and the name; the autoencoder of a whole pipeline is a part of it "
    remedy += "(hub:ORG/NAME/vae); without a connection give a folder."
    short = " ".join(str(error).split())[:300]
    return BadAutoencoder(
        f"the {part} {name} cannot be loaded: {short}{remedy if name.startswith(HUB) else ''}"
    )

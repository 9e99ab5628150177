"""Folders of networks that people name: on this disk, or hub:ORG/NAME on Hugging Face's hub."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from safetensors import SafetensorError

from stepwell.core.errors import StepwellError, quoted
from stepwell.core.reading import place

HUB = "hub:"
REFUSED = (
    OSError,
    ArithmeticError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
    SafetensorError,
)
"""What diffusers, transformers and torch raise for folders that make no sense."""
_PARTS = ("unet/", "transformer/", "scheduler/", "text_encoder/", "tokenizer/")
_FILES = ("*.json", "merges.txt", "vocab.txt", "model.safetensors", "diffusion_pytorch_model.safetensors")
"""Other files of a repository may be the same weights again, in other formats."""


class NotOnTheHub(StepwellError, ValueError):
    """A name that the hub does not have, or that cannot be fetched from here."""


def folder_of(spec: str) -> Path:
    """The folder at a path, or the local copy of hub:ORG/NAME, which is fetched once."""
    return _fetched(spec.removeprefix(HUB)) if spec.startswith(HUB) else place(spec)


@cache
def _fetched(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    wanted = [f"{part}{file}" for part in ("", *_PARTS) for file in _FILES]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (OSError, ValueError, HfHubHTTPError) as error:
        said = " ".join(str(error).split())[:200]
        raise NotOnTheHub(
            f"{HUB}{name} cannot be fetched ({said}): check the connection and the name {quoted(name)} on "
            "https://huggingface.co/models, or give a folder."
        ) from error

"""A frozen CLIP text model and its tokenizer, as transformers and Stable Diffusion's folders keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stepwell.core.errors import StepwellError
from stepwell.core.ranks import meet, worker_group
from stepwell.core.reading import object_of
from stepwell.models.denoiser import TextShape
from stepwell.models.hub import REFUSED, folder_of
from stepwell.runs.io import replacing

_MODEL_TYPES = ("clip_text_model", "clip")
_MODEL_FILES = ("config.json", "*.safetensors", "model.safetensors.index.json")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_AT_ONCE = 64


class BadTextEncoder(StepwellError, ValueError):
    """A text encoder that cannot be found, read or used."""


@dataclass(frozen=True)
class TextEncoder:
    """Where a text encoder is, and the shape of what it makes of a text; it is loaded to embed some."""

    name: str
    model: Path
    tokenizer: Path
    shape: TextShape

    @property
    def files(self) -> dict[str, list[Path]]:
        """Its files, under the names of the folders that pipelines of diffusers have for them."""
        found = {"text_encoder": (self.model, _MODEL_FILES), "tokenizer": (self.tokenizer, _TOKENIZER_FILES)}
        return {
            part: sorted(file for pattern in patterns for file in folder.glob(pattern))
            for part, (folder, patterns) in found.items()
        }

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of all its files, read once as long as they stay as they are."""
        files = [(part, file) for part, files in self.files.items() for file in files]
        return _digest(tuple((part, file, file.stat().st_mtime_ns) for part, file in files))

    def embed(self, texts: Sequence[str]) -> tuple[Tensor, list[int]]:
        """The last hidden states [N, tokens, width] of texts in float16, and which texts were cut.

        As Stable Diffusion has them: padded to the longest length, nothing masked.
        """
        model, tokenizer = self._loaded
        tokens = self.shape.tokens
        device = "cuda" if torch.cuda.is_available() else "cpu"
        lengths = [len(ids) for ids in tokenizer(list(texts), truncation=False, verbose=False).input_ids]
        embedded = torch.empty((len(texts), *self.shape), dtype=torch.float16)
        model.to(device)
        for start in range(0, len(texts), _AT_ONCE):
            some = list(texts[start : start + _AT_ONCE])
            ids = tokenizer(
                some, padding="max_length", max_length=tokens, truncation=True, return_tensors="pt"
            ).input_ids
            with torch.no_grad():
                embedded[start : start + len(some)] = model(ids.to(device))[0].to("cpu", torch.float16)
        return embedded, [row for row, length in enumerate(lengths) if length > tokens]

    def embed_once(self, texts: Sequence[str], folder: Path) -> tuple[Tensor, list[int]]:
        """`embed`, kept in a folder by the digests of the encoder and the texts; one rank computes."""
        key = blake2b("\n".join((self.digest, *texts)).encode(), digest_size=12).hexdigest()
        path, group = folder / f"{key}.safetensors", worker_group()
        stored = self._stored(path, len(texts))
        # All look before one of them writes, and read what it has written.
        meet(group)
        if stored is None and group.rank == 0:
            embedded, cut = self.embed(texts)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with replacing(path) as temporary:
                    save_file({"texts": embedded, "cut": torch.tensor(cut, dtype=torch.int64)}, temporary)
            except (OSError, SafetensorError) as error:
                raise BadTextEncoder(
                    f"cannot keep embedded captions in {folder} ({error}): set STEPWELL_CACHE to a folder "
                    "that can be written and has room."
                ) from error
        meet(group)
        found = stored or self._stored(path, len(texts))
        if found is None:
            raise BadTextEncoder(f"{path} cannot be read: set STEPWELL_CACHE to a folder that all ranks see.")
        return found

    def _stored(self, path: Path, count: int) -> tuple[Tensor, list[int]] | None:
        """What `embed_once` wrote, mapped from disk; None if it is missing or damaged."""
        try:
            tensors = load_file(path)
            embedded, cut = tensors["texts"], tensors["cut"].tolist()
        except (OSError, SafetensorError, KeyError):
            return None
        return (embedded, cut) if embedded.shape == (count, *self.shape) else None

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        # transformers takes seconds to import.
        import transformers

        transformers.utils.logging.disable_progress_bar()
        tokenizers, models = transformers.CLIPTokenizerFast, transformers.CLIPTextModel  # type: ignore[attr-defined]
        try:
            tokenizer = tokenizers.from_pretrained(self.tokenizer, local_files_only=True)
            loaded: Any = models.from_pretrained(
                self.model, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        except REFUSED as error:
            said = " ".join(str(error).split())[:200]
            raise BadTextEncoder(f"the text encoder {self.name} cannot be loaded ({said}).") from error
        model, report = loaded
        # transformers only warns about these, and leaves them random.
        if lost := sorted(report["missing_keys"]):
            raise BadTextEncoder(
                f"the weights in {self.model} are not those of a CLIP text model: {len(lost)} are missing, "
                f"such as {lost[0]}."
            )
        return model.float().eval().requires_grad_(False), tokenizer


@lru_cache(maxsize=8)
def _digest(files: tuple[tuple[str, Path, int], ...]) -> str:
    """Of files with the part that each belongs to, and when it was last changed."""
    total = blake2b(digest_size=8)
    for part, file, _ in files:
        total.update(f"{part}/{file.name} {file.stat().st_size};".encode())
        with file.open("rb") as stream:
            while piece := stream.read(1 << 22):
                total.update(piece)
    return total.hexdigest()


def find_text_encoder(spec: str) -> TextEncoder:
    """The encoder in a folder, flat or with text_encoder/ and tokenizer/, or at hub:ORG/NAME; not loaded."""
    folder = folder_of(spec)
    parts = (folder / "text_encoder", folder / "tokenizer")
    model, tokenizer = parts if parts[0].is_dir() else (folder, folder)
    if not (model / "config.json").is_file():
        raise BadTextEncoder(
            f"there is no text encoder at {str(folder)!r}: give a folder that save_pretrained of a CLIP text "
            "model and of its tokenizer wrote, or one with text_encoder/ and tokenizer/."
        )
    config = object_of(model / "config.json")
    if config.get("model_type") not in _MODEL_TYPES:
        raise BadTextEncoder(
            f"{model} holds a {config.get('model_type')}, and texts are embedded by CLIP text models only "
            f"({' or '.join(_MODEL_TYPES)})."
        )
    encoder = TextEncoder(spec, model, tokenizer, _shape(model, config))
    for part, wanted, kind in (("text_encoder", model, ".safetensors"), ("tokenizer", tokenizer, ".json")):
        if not any(file.suffix == kind and file.name != "config.json" for file in encoder.files[part]):
            raise BadTextEncoder(
                f"{wanted} has no {part.replace('_', ' ')} ({kind} files): save it there too."
            )
    return encoder


def _shape(model: Path, config: dict[str, Any]) -> TextShape:
    # A whole CLIP has the configuration of its text model inside; transformers leaves out its defaults.
    inner = config.get("text_config") if config.get("model_type") == "clip" else config
    values = inner if isinstance(inner, dict) else {}
    tokens, width = values.get("max_position_embeddings", 77), values.get("hidden_size", 512)
    if not (isinstance(tokens, int) and isinstance(width, int) and tokens > 0 and width > 0):
        raise BadTextEncoder(f"{model / 'config.json'} has no usable sizes: save the text encoder again.")
    return TextShape(tokens, width)

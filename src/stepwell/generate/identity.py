"""What images were made by: a small file beside them, so that nobody mixes two models in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.core.errors import StepwellError
from stepwell.core.process import NoiseProcess
from stepwell.generate.images import Request
from stepwell.runs.whole import write_json

NAME = "generation.json"


class OtherImages(StepwellError, ValueError):
    """A place that holds images of another model, seed or solver."""


@dataclass(frozen=True)
class Identity:
    """All that a pixel depends on. The batch size is not part of it, and of a folder not the count either."""

    values: dict[str, Any]

    def claim(self, record: Path, holds_images: bool) -> None:
        """Write the record, or check that it says the same; `record`'s place may hold images already."""
        if not record.exists():
            if holds_images:
                raise OtherImages(
                    f"{_place(record)} holds files that are not of stepwell generate: choose another --out."
                )
            record.parent.mkdir(parents=True, exist_ok=True)
            write_json(record, self.values)
            return
        before = _read(record)
        changed = [
            f"{key} was {before.get(key)!r} and is {self.values.get(key)!r}"
            for key in sorted(before.keys() | self.values.keys())
            if before.get(key) != self.values.get(key)
        ]
        if changed:
            raise OtherImages(
                f"{_place(record)} holds other images ({'; '.join(changed)}): repeat the command that "
                "made them to continue it, or choose another --out."
            )


def identity_of(denoiser: nn.Module, process: NoiseProcess, request: Request, count: bool) -> Identity:
    """The identity of a request to a network; with its `count` if the file is made for it."""
    of_images = ("shape", "solver", "steps", "seed", "labels", "guidance", "eta", "clip")
    values = {name: getattr(request, name) for name in (*of_images, *(["count"] if count else []))}
    values |= {"process": repr(process), "weights": fingerprint(denoiser)}
    if request.originals is not None:
        values["originals"] = str(request.originals)
    # As JSON has them: lists for tuples.
    return Identity(json.loads(json.dumps(values)))


def fingerprint(network: nn.Module) -> str:
    """16 hexadecimal digits of the weights, by name."""
    return digest_of(network.state_dict())


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """16 hexadecimal digits of tensors and their names."""
    digest = blake2b(digest_size=8)
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(record: Path) -> dict[str, Any]:
    try:
        values = json.loads(record.read_text(encoding="utf-8"))
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise OtherImages(
            f"{record} is damaged: delete it with the images it belongs to, or choose another --out."
        )
    return values


def _place(record: Path) -> Path:
    return record.parent if record.name == NAME else record.with_name(record.name.removesuffix(f".{NAME}"))

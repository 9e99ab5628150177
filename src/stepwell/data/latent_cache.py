"""The format of a folder of latents: manifest.json, and shards with a checksum each."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from stepwell.data.source import BadData
from stepwell.runs.io import write_atomic

NAME = "manifest.json"
SPLITS = ("train", "held_out")
_FORMAT = "stepwell latents"
_VERSION = 1
_PLACES = frozenset({"autoencoder", "data"})
"""Keys of a plan that are paths: they may change, the digests beside them may not."""
_CHUNK = 1 << 22
Moments = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and variance (or standard deviation) of each channel."""


@dataclass(frozen=True)
class Shard:
    """A range of rows of one split, stored in one file."""

    split: str
    number: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.split}-{self.number:05d}.safetensors"


@dataclass(frozen=True)
class CachePlan:
    """Everything that determines the contents of a cache; encodes with equal plans may share a folder."""

    data: str
    data_digest: str
    autoencoder: str
    fingerprint: str
    posterior: bool
    image_shape: tuple[int, int, int]
    latent_shape: tuple[int, int, int]
    train: int
    held_out: int
    classes: int
    mirrored: bool
    dtype: str
    shard: int
    scale: str

    def shards(self) -> Iterator[Shard]:
        """All shards, in order."""
        for split, count in zip(SPLITS, (self.train, self.held_out), strict=True):
            for number, start in enumerate(range(0, count, self.shard)):
                yield Shard(split, number, start, min(start + self.shard, count))

    def megabytes(self) -> float:
        """The size of all shards together."""
        arrays = (1 + self.posterior) * (1 + self.mirrored)
        item = 2 if self.dtype == "fp16" else 4
        each = math.prod(self.latent_shape) * arrays * item + (8 if self.classes else 0)
        return (self.train + self.held_out) * each / 1e6

    def command(self, folder: Path) -> str:
        """The command that creates, finishes or repairs this cache."""
        words = ["stepwell", "data", "encode", self.data, "--autoencoder", self.autoencoder]
        words += ["--out", str(folder), "--dtype", self.dtype, "--shard", str(self.shard)]
        words += ["--flips" if self.mirrored else "--no-flips"]
        words += ["--labels"] if self.classes else []
        words += ["--scale", self.scale] if self.scale != "channel" else []
        height, width = self.image_shape[1:]
        words += ["--size", str(height)] if height == width else []
        return shlex.join(words)

    def digest(self) -> str:
        """A digest of the plan without its paths."""
        body = {key: value for key, value in asdict(self).items() if key not in _PLACES}
        return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    def differs_from(self, other: CachePlan) -> list[str]:
        """The differences, in words."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{key.replace('_', ' ')} {_brief(theirs[key])}, not {_brief(mine[key])}"
            for key in mine
            if key not in _PLACES and mine[key] != theirs[key]
        ]


@dataclass(frozen=True)
class ShardRecord:
    """A written shard: its checksum, and its part of the statistics."""

    name: str
    rows: tuple[int, int]
    bytes: int
    sha256: str
    mean: tuple[float, ...]
    """[C]: over rows and positions."""
    variance: tuple[float, ...]
    """[C]: including the posterior's own variance."""


@dataclass(frozen=True)
class Manifest:
    """manifest.json: the plan, and the shards once all of them are written."""

    plan: CachePlan
    records: tuple[ShardRecord, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()
    """Training sees (latent - shift) * scale, per channel."""
    scale: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes about the images from reading them."""

    @property
    def finished(self) -> bool:
        """Whether all shards are written."""
        return bool(self.records)

    def write(self, folder: Path) -> None:
        """Write manifest.json atomically."""
        body = {"format": _FORMAT, "version": _VERSION, "finished": self.finished, **asdict(self)}
        write_atomic(folder / NAME, json.dumps(body, indent=1).encode())


def read_manifest(folder: Path) -> Manifest:
    """Read manifest.json; raises BadData if it is missing, damaged or of another version."""
    path = folder / NAME
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read ({error}): encode the latents into another folder.") from error
    if not isinstance(body, dict) or body.get("format") != _FORMAT:
        raise BadData(f"{path} does not describe latents: give the folder that encode wrote.")
    if body.get("version") != _VERSION:
        raise BadData(
            f"{path} has format {body.get('version')}, and this stepwell reads {_VERSION}: encode again."
        )
    try:
        plan = CachePlan(**_with_tuples(body["plan"]))
        records = tuple(ShardRecord(**_with_tuples(record)) for record in body["records"])
        more = {key: tuple(body[key]) for key in ("mean", "std", "shift", "scale", "notes")}
        return Manifest(plan, records, **more)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadData(f"{path} is damaged ({error}): encode the latents into another folder.") from error


def is_latent_cache(folder: Path) -> bool:
    """Whether a folder has our manifest.json; a folder of images may have another file of that name."""
    try:
        return f'"{_FORMAT}"' in (folder / NAME).read_text()[:200]
    except (OSError, ValueError):
        return False


def _with_tuples(body: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in body.items()}


def _brief(value: object) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text


def write_shard(folder: Path, shard: Shard, tensors: dict[str, Tensor], plan_digest: str) -> None:
    """Write a shard, then its record beside it: a shard without a record is unfinished."""
    content = save(tensors)
    rows, digest = (shard.start, shard.stop), sha256(content).hexdigest()
    record = ShardRecord(shard.name, rows, len(content), digest, *_moments(tensors))
    write_atomic(folder / shard.name, content)
    body = {"plan": plan_digest, **asdict(record)}
    write_atomic(folder / f"{shard.name}.json", json.dumps(body).encode())


def read_record(folder: Path, shard: Shard, plan_digest: str) -> ShardRecord | None:
    """The record beside a shard, if it was written for this plan."""
    try:
        body = json.loads((folder / f"{shard.name}.json").read_text())
        return ShardRecord(**_with_tuples(body)) if body.pop("plan") == plan_digest else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def shard_damage(folder: Path, record: ShardRecord) -> str:
    """What is wrong with a shard's file; empty if it matches its record."""
    path = folder / record.name
    try:
        size = path.stat().st_size
        if size != record.bytes:
            return f"has {size:,} bytes instead of {record.bytes:,}"
        total = sha256()
        with path.open("rb") as file:
            while piece := file.read(_CHUNK):
                total.update(piece)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if total.hexdigest() == record.sha256 else "does not match its checksum"


def load_shard(folder: Path, record: ShardRecord) -> dict[str, Tensor]:
    """A shard's tensors, memory-mapped."""
    try:
        return load_file(folder / record.name)
    except (OSError, SafetensorError) as error:
        raise BadData(f"{folder / record.name} cannot be read ({error}).") from error


def pooled_moments(records: list[ShardRecord]) -> Moments:
    """Mean and standard deviation of each channel over all shards (Chan et al. 1983)."""
    counts = torch.tensor([float(r.rows[1] - r.rows[0]) for r in records], dtype=torch.float64)
    share = (counts / counts.sum())[:, None]
    means = torch.tensor([r.mean for r in records], dtype=torch.float64)
    variances = torch.tensor([r.variance for r in records], dtype=torch.float64)
    mean = (share * means).sum(0)
    variance = (share * (variances + (means - mean).square())).sum(0)
    return tuple(mean.tolist()), tuple(variance.sqrt().tolist())


def _moments(tensors: dict[str, Tensor]) -> Moments:
    """Mean and variance of each channel in float64, over images and their mirror images."""
    latents = torch.cat([tensors[key].double() for key in ("mean", "mirrored_mean") if key in tensors])
    mean, variance = latents.mean((0, 2, 3)), latents.var((0, 2, 3), correction=0)
    deviations = [tensors[key].double() for key in ("std", "mirrored_std") if key in tensors]
    if deviations:
        variance = variance + torch.cat(deviations).square().mean((0, 2, 3))
    return tuple(mean.tolist()), tuple(variance.tolist())

"""The format of a folder of latents: manifest.json, and shards with a checksum each."""

from __future__ import annotations

import json
import math
import shlex
import typing
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import quoted
from stepwell.core.reading import Unreadable, object_of, regular_file
from stepwell.data.source import BadData
from stepwell.runs.io import write_atomic

NAME, CAPTIONS = "manifest.json", "captions.json"
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
    captions: str = ""
    """A digest of the captions that labels are numbers of; without any it is no part of the plan's digest."""

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
        words += ["--captions"] if self.captions else ["--labels"] if self.classes else []
        words += ["--scale", self.scale] if self.scale != "channel" else []
        height, width = self.image_shape[1:]
        words += ["--size", str(height)] if height == width else []
        return shlex.join(words)

    def digest(self) -> str:
        """A digest of the plan without its paths."""
        body = {
            k: value for k, value in asdict(self).items() if k not in _PLACES and (value or k != "captions")
        }
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
        body = object_of(path)
    except Unreadable as error:
        raise BadData(f"{error} Encode the latents into another folder.") from None
    if body.get("format") != _FORMAT:
        raise BadData(f"{path} does not describe latents: give the folder that encode wrote.")
    if body.get("version") != _VERSION:
        raise BadData(
            f"{path} has format {quoted(body.get('version'))}, and this stepwell reads {_VERSION}: "
            "encode again."
        )
    try:
        plan = CachePlan(**_fields(CachePlan, body["plan"]))
        records = tuple(ShardRecord(**_fields(ShardRecord, record)) for record in body["records"])
        more = {key: tuple(body[key]) for key in ("mean", "std", "shift", "scale", "notes")}
        manifest = Manifest(plan, records, **more)
        _require_whole(manifest)
        return manifest
    except (KeyError, TypeError) as error:
        raise BadData(f"{path} is damaged ({error}): encode the latents into another folder.") from error


def _fields(kind: type[Any], body: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them, with tuples; TypeError names one of another type."""
    if not isinstance(body, dict):
        raise TypeError(f"{quoted(body)} is no {kind.__name__}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in body.items()}
    for name, hint in typing.get_type_hints(kind).items():
        if name in values and not _is_of(values[name], hint):
            raise TypeError(f"{name} is {quoted(values[name])}")
    return values


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of a type: text, true or false, a count, a finite number, a tuple of these."""
    of = typing.get_args(hint)
    if of:
        same_length = of[-1] is Ellipsis or (isinstance(value, tuple) and len(value) == len(of))
        return isinstance(value, tuple) and same_length and all(_is_of(one, of[0]) for one in value)
    if hint is float:
        return type(value) in (int, float) and require.is_finite(value)
    return type(value) is hint and (hint is not int or 0 <= value <= require.MOST)


def _require_whole(manifest: Manifest) -> None:
    """TypeError if shards, channels or notes are not those of the plan."""
    plan, records = manifest.plan, manifest.records
    if not plan.shard or not all(plan.latent_shape):
        raise TypeError("shards or latents of no size")
    names = [shard.name for shard, _ in zip(plan.shards(), range(len(records) + 1), strict=False)]
    if records and names != [record.name for record in records]:
        raise TypeError("the shards are not those of its plan")
    moments = (manifest.mean, manifest.std, manifest.shift, manifest.scale)
    for values in moments if records else ():
        if len(values) != plan.latent_shape[0] or not _is_of(values, tuple[float, ...]):
            raise TypeError("the moments are not those of its channels")
    if not all(isinstance(note, str) for note in manifest.notes) or not all(manifest.scale):
        raise TypeError("the notes or the scale are none")


def is_latent_cache(folder: Path) -> bool:
    """Whether a folder has our manifest.json; a folder of images may have another file of that name."""
    try:
        with regular_file(folder / NAME).open(encoding="utf-8") as stream:
            return f'"{_FORMAT}"' in stream.read(200)
    except (OSError, ValueError):
        return False


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
        body = object_of(folder / f"{shard.name}.json")
        return ShardRecord(**_fields(ShardRecord, body)) if body.pop("plan") == plan_digest else None
    except (Unreadable, KeyError, TypeError):
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


def load_shard(folder: Path, record: ShardRecord, plan: CachePlan) -> dict[str, Tensor]:
    """A shard's tensors, memory-mapped, if they are those of the plan."""
    try:
        tensors = load_file(folder / record.name)
    except (OSError, SafetensorError) as error:
        raise BadData(f"{folder / record.name} cannot be read ({error}).") from error
    rows = record.rows[1] - record.rows[0]
    kinds = [kind for kind in ("mean", "std") if kind == "mean" or plan.posterior]
    names = [*kinds, *(f"mirrored_{kind}" for kind in kinds if plan.mirrored)]
    shapes = dict.fromkeys(names, (rows, *plan.latent_shape)) | ({"labels": (rows,)} if plan.classes else {})
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != shapes:
        raise BadData(f"{folder / record.name} does not hold the latents of its plan: encode them again.")
    return tensors


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

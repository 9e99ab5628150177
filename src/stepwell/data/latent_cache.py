"""What a folder of latents says about itself: manifest.json, and the plan that its shards follow."""

from __future__ import annotations

import json
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
from stepwell.runs.io import write_whole

NAME = "manifest.json"
SPLITS = ("train", "held_out")
_FORMAT = "stepwell latents"
_VERSION = 1
_PLACES = frozenset({"autoencoder", "data"})
"""Of a plan: where things lie, which a moved folder changes; their digests tell what they are."""


@dataclass(frozen=True)
class Shard:
    """Some rows of one split."""

    split: str
    number: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Its file's."""
        return f"{self.split}-{self.number:05d}.safetensors"


@dataclass(frozen=True)
class Plan:
    """Everything that decides what is in a cache; two encodes with one plan may share a folder."""

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
        """All of them, in order."""
        for split, count in zip(SPLITS, (self.train, self.held_out), strict=True):
            for number, start in enumerate(range(0, count, self.shard)):
                yield Shard(split, number, start, min(start + self.shard, count))

    def megabytes(self) -> float:
        """Of all shards together."""
        channels, height, width = self.latent_shape
        arrays = (1 + self.posterior) * (1 + self.mirrored)
        each = channels * height * width * arrays * (2 if self.dtype == "fp16" else 4) + 8 * bool(
            self.classes
        )
        return (self.train + self.held_out) * each / 1e6

    def command(self, folder: Path) -> str:
        """What makes, finishes or repairs this cache."""
        words = ["stepwell", "data", "encode", self.data, "--autoencoder", self.autoencoder]
        words += ["--out", str(folder), "--dtype", self.dtype, "--shard", str(self.shard)]
        words += ["--flips" if self.mirrored else "--no-flips"]
        words += ["--labels"] if self.classes else []
        words += ["--scale", self.scale] if self.scale != "channel" else []
        height, width = self.image_shape[1:]
        words += ["--size", str(height)] if height == width else []
        return shlex.join(words)

    def digest(self) -> str:
        """Of what is in the cache, wherever its sources lie."""
        body = {key: value for key, value in asdict(self).items() if key not in _PLACES}
        return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    def differs_from(self, other: Plan) -> list[str]:
        """What the two disagree about, in words."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{key.replace('_', ' ')} {_brief(theirs[key])}, not {_brief(mine[key])}"
            for key in mine
            if key not in _PLACES and mine[key] != theirs[key]
        ]


@dataclass(frozen=True)
class Record:
    """A shard that was written: how to know it again, and its share of the statistics."""

    name: str
    rows: tuple[int, int]
    bytes: int
    sha256: str
    mean: tuple[float, ...]
    """Of each channel, over rows and positions."""
    variance: tuple[float, ...]
    """The same; a posterior's own variance included."""


@dataclass(frozen=True)
class Manifest:
    """A plan, and what was written of it; `records` is empty until all is."""

    plan: Plan
    records: tuple[Record, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()
    """Training sees (latent - shift) * scale, per channel."""
    scale: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    """What the images' reader said."""

    @property
    def finished(self) -> bool:
        """Whether all shards were written."""
        return bool(self.records)

    def write(self, folder: Path) -> None:
        """As JSON, whole or not at all."""
        body = {"format": _FORMAT, "version": _VERSION, "finished": self.finished, **asdict(self)}
        write_whole(folder / NAME, json.dumps(body, indent=1).encode())


def read(folder: Path) -> Manifest:
    """The manifest of a folder, or what is wrong with it."""
    path = folder / NAME
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read ({error}): encode the latents into another folder.") from error
    if not isinstance(body, dict) or body.get("format") != _FORMAT:
        raise BadData(
            f"{path} is not the manifest of a folder of latents: give the folder that encode wrote."
        )
    if body.get("version") != _VERSION:
        raise BadData(
            f"{path} is of format {body.get('version')}, and this stepwell reads {_VERSION}: encode again."
        )
    try:
        plan = Plan(**with_tuples(body["plan"]))
        records = tuple(Record(**with_tuples(record)) for record in body["records"])
        more = {key: tuple(body[key]) for key in ("mean", "std", "shift", "scale", "notes")}
        return Manifest(plan, records, **more)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadData(f"{path} is damaged ({error}): encode the latents into another folder.") from error


def is_cache(folder: Path) -> bool:
    """Whether a folder has a manifest of ours; a folder of images may have any other manifest.json."""
    try:
        return f'"{_FORMAT}"' in (folder / NAME).read_text()[:200]
    except (OSError, ValueError):
        return False


def with_tuples(body: dict[str, Any]) -> dict[str, Any]:
    """What JSON made lists of."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in body.items()}


def _brief(value: object) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text


_CHUNK = 1 << 22


def write(folder: Path, shard: Shard, tensors: dict[str, Tensor], plan_digest: str) -> Record:
    """The shard, then its record beside it: a shard without one was not finished."""
    content = save(tensors)
    mean, variance = _moments(tensors)
    record = Record(
        shard.name, (shard.start, shard.stop), len(content), sha256(content).hexdigest(), mean, variance
    )
    write_whole(folder / shard.name, content)
    body = {"plan": plan_digest, **asdict(record)}
    write_whole(beside(folder, shard.name), json.dumps(body).encode())
    return record


def beside(folder: Path, name: str) -> Path:
    """Where a shard's record is until the manifest has them all."""
    return folder / f"{name}.json"


def recorded(folder: Path, shard: Shard, plan_digest: str) -> Record | None:
    """What was written down about a shard of this plan, before the manifest had it."""
    try:
        body = json.loads(beside(folder, shard.name).read_text())
        if body.pop("plan") != plan_digest:
            return None
        return Record(**with_tuples(body))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def wrong_with(folder: Path, record: Record) -> str:
    """Nothing, or what is wrong with a shard's file."""
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


def load(folder: Path, record: Record) -> dict[str, Tensor]:
    """A shard's tensors, mapped from the file: what is not indexed is not read."""
    try:
        return load_file(folder / record.name)
    except (OSError, SafetensorError) as error:
        raise BadData(f"{folder / record.name} cannot be read ({error}).") from error


def pooled(records: list[Record]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over shards, as if they were one (Chan et al. 1983)."""
    counts = torch.tensor([float(r.rows[1] - r.rows[0]) for r in records], dtype=torch.float64)
    share = (counts / counts.sum())[:, None]
    means = torch.tensor([r.mean for r in records], dtype=torch.float64)
    variances = torch.tensor([r.variance for r in records], dtype=torch.float64)
    mean = (share * means).sum(0)
    variance = (share * (variances + (means - mean).square())).sum(0)
    return tuple(mean.tolist()), tuple(variance.sqrt().tolist())


def _moments(tensors: dict[str, Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of the stored values in float64; all images count alike, and so do their mirror images."""
    whole = torch.cat([tensors[key].double() for key in ("mean", "mirrored_mean") if key in tensors])
    mean, variance = whole.mean((0, 2, 3)), whole.var((0, 2, 3), correction=0)
    spread = [tensors[key].double() for key in ("std", "mirrored_std") if key in tensors]
    if spread:
        variance = variance + torch.cat(spread).square().mean((0, 2, 3))
    return tuple(mean.tolist()), tuple(variance.tolist())

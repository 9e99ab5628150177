"""Shards of latents: one safetensors file each, with a record of its checksum and statistics."""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from stepwell.data.latent_manifest import Record, Shard, with_tuples
from stepwell.data.source import BadData
from stepwell.runs.whole import write_whole

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

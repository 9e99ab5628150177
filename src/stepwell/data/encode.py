"""Encode images to a folder of latents; an interrupted encode continues, a damaged shard is encoded again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from stepwell.core import require
from stepwell.core.errors import InvalidParameter
from stepwell.core.ranks import WorkerGroup, meet, worker_group
from stepwell.data.captions import captions_digest
from stepwell.data.latent_cache import (
    CAPTIONS,
    NAME,
    SPLITS,
    CachePlan,
    Manifest,
    Moments,
    Shard,
    ShardRecord,
    pooled_moments,
    read_manifest,
    read_record,
    shard_damage,
    write_shard,
)
from stepwell.data.source import BadData, DataSet, ImageSource, to_unit
from stepwell.runs.io import write_atomic

_DIGESTED = 64
"""Images of each split in the data's digest; reading all of them would cost an epoch."""
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


class Encoder(Protocol):
    """An autoencoder: images [B, C, H, W] in [-1, 1] to mean and standard deviation of their latents."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def factor(self) -> int: ...
    @property
    def posterior(self) -> bool: ...
    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True)
class Storage:
    """How latents are stored, and how they are scaled for training."""

    dtype: str = "fp16"
    shard: int = 4096
    """Images per shard."""
    scale: str = "channel"
    """channel: mean 0 and deviation 1 per channel; global: one factor (LDM); or a number: that factor."""

    def __post_init__(self) -> None:
        require.one_of("dtype", self.dtype, tuple(DTYPES))
        require.count("shard", self.shard)
        if self.scale not in ("channel", "global"):
            try:
                valid = 0 < float(self.scale) < float("inf")
            except ValueError:
                valid = False
            if not valid:
                raise InvalidParameter(f"scale must be channel, global or a factor, not {self.scale!r}.")


def plan_of(spec: str, data: DataSet, encoder: Encoder, storage: Storage) -> CachePlan:
    """What `encode` will write; raises BadData if the images do not fit the autoencoder."""
    if data.latents is not None:
        raise BadData(f"{spec} already is a folder of latents: give the images that were encoded.")
    source = cast(ImageSource, data.train)
    channels, height, width = source.shape
    factor = encoder.factor
    if height % factor or width % factor:
        size = max(factor, height // factor * factor)
        raise BadData(
            f"{source.name} has images of {height}x{width} pixels, and {encoder.name} makes one latent of "
            f"{factor}x{factor}: give a size that is a multiple of {factor}, such as --size {size}."
        )
    return CachePlan(
        data=spec,
        data_digest=_digest(data),
        autoencoder=encoder.name,
        fingerprint=encoder.fingerprint,
        posterior=encoder.posterior,
        image_shape=(channels, height, width),
        latent_shape=(encoder.channels, height // factor, width // factor),
        train=len(data.train),
        held_out=len(data.held_out),
        classes=source.classes if source.labels is not None else 0,
        mirrored=source.flips,
        captions=captions_digest(data.captions) if data.captions else "",
        **asdict(storage),
    )


def _digest(data: DataSet) -> str:
    """A digest of all labels and some images of both splits."""
    total = sha256()
    for split in (data.train, data.held_out):
        source = cast(ImageSource, split)
        rows = torch.linspace(0, len(source) - 1, min(_DIGESTED, len(source))).round().long()
        total.update(f"{len(source)} {source.shape}".encode())
        total.update(source.fetch(rows).contiguous().numpy().data)
        if source.labels is not None:
            total.update(source.labels.contiguous().numpy().data)
    return total.hexdigest()


Progress = Callable[[int, int], None]
"""(images encoded, of how many)."""


def encode(
    folder: Path,
    plan: CachePlan,
    data: DataSet,
    encoder: Encoder,
    *,
    batch: int = 32,
    progress: Progress = lambda done, total: None,
) -> Manifest:
    """Write the missing shards of a cache; under torch.distributed every rank calls this for its share."""
    require.count("batch", batch)
    group = worker_group()
    before = _open(folder, plan, data, group)
    meet(group)  # Every rank reads the manifest before any of them writes.
    mine = list(plan.shards())[group.rank :: group.world]
    missing = [shard for shard in mine if not _is_intact(folder, shard, plan, before)]
    total = _images(mine)
    done = total - _images(missing)
    progress(done, total)
    for shard in missing:
        source = cast(ImageSource, data.train if shard.split == SPLITS[0] else data.held_out)
        parts = list[dict[str, Tensor]]()
        for rows in torch.arange(shard.start, shard.stop).split(batch):
            parts.append(_encoded(source, rows, plan, encoder))
            done += len(rows)
            progress(done, total)
        _write(folder, shard, plan, parts)
    meet(group)
    manifest = _finished(folder, plan, before)
    meet(group)
    if group.rank == 0:
        manifest.write(folder)
        for leftover in (*folder.glob("*.safetensors.json"), *folder.glob(".*.tmp")):
            leftover.unlink(missing_ok=True)
    meet(group)
    return manifest


def _open(folder: Path, plan: CachePlan, data: DataSet, group: WorkerGroup) -> Manifest:
    """The manifest of this cache, new or as an earlier encode left it; other folders are refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / NAME).exists():
            before = read_manifest(folder)
            differences = plan.differs_from(before.plan)
            if differences:
                raise BadData(
                    f"{folder} holds other latents ({'; '.join(differences)}). Choose another --out, or "
                    f"finish those: {before.plan.command(folder)}"
                )
            return before
        if any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise BadData(f"{folder} is not empty and not a folder of latents: choose another --out.")
        manifest = Manifest(plan, notes=data.notes)
        if group.rank == 0:
            manifest.write(folder)
            if data.captions:
                write_atomic(folder / CAPTIONS, json.dumps(data.captions).encode())
        return manifest
    except OSError as error:
        raise BadData(f"cannot write into {folder} ({error.strerror}): choose another --out.") from error


def _records(folder: Path, shard: Shard, plan: CachePlan, before: Manifest) -> list[ShardRecord]:
    """The records of a shard, the newest first: beside its file, and in the manifest."""
    newest = read_record(folder, shard, plan.digest())
    listed = [record for record in before.records if record.name == shard.name]
    return ([] if newest is None else [newest]) + listed


def _is_intact(folder: Path, shard: Shard, plan: CachePlan, before: Manifest) -> bool:
    """Whether a shard's file matches one of its records."""
    return any(not shard_damage(folder, record) for record in _records(folder, shard, plan, before))


def _encoded(source: ImageSource, rows: Tensor, plan: CachePlan, encoder: Encoder) -> dict[str, Tensor]:
    """The stored tensors of some rows [B] of a shard."""
    images = to_unit(source.fetch(rows)).to("cuda" if torch.cuda.is_available() else "cpu")
    inputs = {"": images, "mirrored_": images.flip(-1)} if plan.mirrored else {"": images}
    latents: dict[str, Tensor] = {}
    for prefix, batch in inputs.items():
        mean, std = encoder.encode(batch)
        latents[f"{prefix}mean"] = mean
        if std is not None:
            latents[f"{prefix}std"] = std
    latents = {name: tensor.to("cpu", DTYPES[plan.dtype]) for name, tensor in latents.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in latents.values()):
        raise BadData(
            f"{encoder.name} makes latents of {source.name} that are not finite in {plan.dtype}: "
            "encode with --dtype fp32, or check the autoencoder's weights."
        )
    if plan.classes:
        assert source.labels is not None
        latents["labels"] = source.labels[rows]
    return latents


def _write(folder: Path, shard: Shard, plan: CachePlan, parts: list[dict[str, Tensor]]) -> None:
    tensors = {name: torch.cat([part[name] for part in parts]).contiguous() for name in parts[0]}
    try:
        write_shard(folder, shard, tensors, plan.digest())
    except OSError as error:
        raise BadData(
            f"cannot write {folder / shard.name} ({error.strerror}); finished shards are kept, and the same "
            "command continues from there."
        ) from error


def _images(shards: list[Shard]) -> int:
    return sum(shard.stop - shard.start for shard in shards)


def _finished(folder: Path, plan: CachePlan, before: Manifest) -> Manifest:
    """The manifest with the records of all shards, whichever rank wrote them."""
    records = list[ShardRecord]()
    for shard in plan.shards():
        known = _records(folder, shard, plan, before)
        if not known:
            raise BadData(
                f"{folder / shard.name} was not written: another process failed. Finished shards are kept; "
                f"continue with {plan.command(folder)}"
            )
        records.append(known[0])
    mean, std = pooled_moments([r for r in records if r.name.startswith(SPLITS[0])])
    shift, scale = _scaling(plan.scale, mean, std)
    return Manifest(plan, tuple(records), mean, std, shift, scale, before.notes)


def _scaling(kind: str, mean: tuple[float, ...], std: tuple[float, ...]) -> Moments:
    """Shift and scale of each channel; a constant channel is left alone."""
    if kind == "channel":
        return mean, tuple(1 / s if s else 1.0 for s in std)
    if kind != "global":
        return (0.0,) * len(mean), (float(kind),) * len(mean)
    # LDM divides by the standard deviation over all channels.
    middle = sum(mean) / len(mean)
    total = (sum(s * s + (m - middle) ** 2 for m, s in zip(mean, std, strict=True)) / len(mean)) ** 0.5
    return (0.0,) * len(mean), (1 / total if total else 1.0,) * len(mean)

"""What an encode will make: decided before the first image is encoded."""

from __future__ import annotations

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
from stepwell.data import latent_cache as latent_manifest
from stepwell.data import latent_cache as latent_shards
from stepwell.data.latent_cache import NAME, SPLITS, Manifest, Plan, Record, Shard
from stepwell.data.source import BadData, DataSet, ImageSource, to_unit

_DIGESTED = 64
"""Images of each split that tell one data set from another; reading all of them would cost an epoch."""
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


class Encoder(Protocol):
    """Images [B, C, H, W] in [-1, 1] to mean and deviation of their latents."""

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
    """How latents are stored, and scaled when they are read."""

    dtype: str = "fp16"
    shard: int = 4096
    """Images in a shard."""
    scale: str = "channel"
    """channel: each to mean 0 and deviation 1; global: one factor (LDM); or that factor."""

    def __post_init__(self) -> None:
        require.one_of("dtype", self.dtype, tuple(DTYPES))
        require.count("shard", self.shard)
        if self.scale not in ("channel", "global"):
            try:
                known = 0 < float(self.scale) < float("inf")
            except ValueError:
                known = False
            if not known:
                raise InvalidParameter(f"scale must be channel, global or a factor, not {self.scale!r}.")


def plan_of(spec: str, data: DataSet, encoder: Encoder, storage: Storage) -> Plan:
    """What an encode will make; images that do not fit the autoencoder are refused here."""
    if data.latents is not None:
        raise BadData(f"{spec} already is a folder of latents: give the images they were made of.")
    source = cast(ImageSource, data.train)
    channels, height, width = source.shape
    factor = encoder.factor
    if height % factor or width % factor:
        better = max(factor, height // factor * factor)
        raise BadData(
            f"{source.name} has images of {height}x{width} pixels, and {encoder.name} makes one latent of "
            f"{factor}x{factor}: give a size that is a multiple of {factor}, such as --size {better}."
        )
    return Plan(
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
        **asdict(storage),
    )


def _digest(data: DataSet) -> str:
    """Of all labels and some images of both splits."""
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
"""Is told how many images are encoded, of how many."""


def encode(
    folder: Path,
    plan: Plan,
    data: DataSet,
    encoder: Encoder,
    *,
    batch: int = 32,
    progress: Progress = lambda done, total: None,
) -> Manifest:
    """Write what is missing of a cache; under torch.distributed every rank calls this and does its share."""
    require.count("batch", batch)
    group = worker_group()
    before = _open(folder, plan, data, group)
    meet(group)  # Nobody writes before all have looked.
    mine = list(plan.shards())[group.rank :: group.world]
    todo = [shard for shard in mine if _kept(folder, shard, plan, before) is None]
    total, done = _images(mine), _images(mine) - _images(todo)
    progress(done, total)
    for shard in todo:
        source = cast(ImageSource, data.train if shard.split == SPLITS[0] else data.held_out)
        parts = list[dict[str, Tensor]]()
        for rows in torch.arange(shard.start, shard.stop).split(batch):
            parts.append(_encoded(source, rows, plan, encoder))
            done += len(rows)
            progress(done, total)
        _write(folder, shard, plan, parts)
    meet(group)
    made = _whole(folder, plan, before)
    meet(group)
    if group.rank == 0:
        made.write(folder)
        for leftover in (*folder.glob("*.safetensors.json"), *folder.glob(".*.tmp")):
            leftover.unlink(missing_ok=True)
    meet(group)
    return made


def _open(folder: Path, plan: Plan, data: DataSet, group: WorkerGroup) -> Manifest:
    """The cache as it was left, or a new one; another cache is not touched."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / NAME).exists():
            before = latent_manifest.read(folder)
            other = plan.differs_from(before.plan)
            if other:
                raise BadData(
                    f"{folder} is a cache of {'; '.join(other)}. Choose another --out, or finish that one: "
                    f"{before.plan.command(folder)}"
                )
            return before
        if any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise BadData(f"{folder} is not empty and no folder of latents: choose another --out.")
        made = Manifest(plan, notes=data.notes)
        if group.rank == 0:
            made.write(folder)
        return made
    except OSError as error:
        raise BadData(f"cannot write into {folder} ({error.strerror}): choose another --out.") from error


def _kept(folder: Path, shard: Shard, plan: Plan, before: Manifest) -> Record | None:
    """The record of a shard that need not be made again: its file is what was written."""
    found = latent_shards.recorded(folder, shard, plan.digest())
    listed = next((record for record in before.records if record.name == shard.name), None)
    for record in (found, listed):
        if record is not None and not latent_shards.wrong_with(folder, record):
            return record
    return None


def _encoded(source: ImageSource, rows: Tensor, plan: Plan, encoder: Encoder) -> dict[str, Tensor]:
    """Some rows [B] of a shard, as they are stored."""
    images = to_unit(source.fetch(rows)).to("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, Tensor] = {}
    for prefix, seen in _seen(images, plan.mirrored):
        mean, std = encoder.encode(seen)
        found[f"{prefix}mean"] = mean
        if std is not None:
            found[f"{prefix}std"] = std
    found = {name: tensor.to("cpu", DTYPES[plan.dtype]) for name, tensor in found.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in found.values()):
        raise BadData(
            f"{encoder.name} makes latents of {source.name} that are not finite in {plan.dtype}: "
            "encode with --dtype fp32, or look at the autoencoder's weights."
        )
    if plan.classes:
        assert source.labels is not None
        found["labels"] = source.labels[rows]
    return found


def _write(folder: Path, shard: Shard, plan: Plan, parts: list[dict[str, Tensor]]) -> None:
    whole = {name: torch.cat([part[name] for part in parts]).contiguous() for name in parts[0]}
    try:
        latent_shards.write(folder, shard, whole, plan.digest())
    except OSError as error:
        raise BadData(
            f"cannot write {folder / shard.name} ({error.strerror}); finished shards are kept, and the same "
            "command goes on from there."
        ) from error


def _images(shards: list[Shard]) -> int:
    return sum(shard.stop - shard.start for shard in shards)


def _seen(images: Tensor, mirrored: bool) -> list[tuple[str, Tensor]]:
    return [("", images)] + ([("mirrored_", images.flip(-1))] if mirrored else [])


def _whole(folder: Path, plan: Plan, before: Manifest) -> Manifest:
    """The manifest over all shards, whoever wrote them."""
    records = list[Record]()
    for shard in plan.shards():
        listed = next((record for record in before.records if record.name == shard.name), None)
        record = latent_shards.recorded(folder, shard, plan.digest()) or listed
        if record is None:
            raise BadData(
                f"{folder / shard.name} was not written: another process failed. Finished shards are kept; "
                f"go on with {plan.command(folder)}"
            )
        records.append(record)
    mean, std = latent_shards.pooled([r for r in records if r.name.startswith(SPLITS[0])])
    shift, scale = _scaling(plan.scale, mean, std)
    return Manifest(plan, tuple(records), mean, std, shift, scale, before.notes)


def _scaling(
    kind: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What training subtracts from each channel and multiplies it by; a constant channel is left alone."""
    if kind == "channel":
        return mean, tuple(1 / s if s else 1.0 for s in std)
    if kind != "global":
        return (0.0,) * len(mean), (float(kind),) * len(mean)
    # LDM divides by the deviation over all channels; they have as many values each.
    middle = sum(mean) / len(mean)
    whole = (sum(s * s + (m - middle) ** 2 for m, s in zip(mean, std, strict=True)) / len(mean)) ** 0.5
    return (0.0,) * len(mean), (1 / whole if whole else 1.0,) * len(mean)

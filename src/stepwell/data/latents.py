"""Read a folder of latents for training: scaled, mirrored and sampled from their posterior."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from stepwell.core.reading import Unreadable, json_of, object_of
from stepwell.core.tick import Tick
from stepwell.data.captions import captions_digest
from stepwell.data.latent_cache import (
    CAPTIONS,
    SPLITS,
    CachePlan,
    Manifest,
    ShardRecord,
    load_shard,
    read_manifest,
    shard_damage,
)
from stepwell.data.source import BadData, DataSet, LatentOrigin, Options, checked_labels
from stepwell.runs.io import write_atomic

_VERIFIED = ".verified.json"


class LatentSource:
    """Latents of one split as (z - shift) * scale; z is the posterior's mean, or a sample with a tick."""

    def __init__(self, folder: Path, manifest: Manifest, split: str, options: Options) -> None:
        plan = manifest.plan
        records = [r for r in manifest.records if r.name.startswith(f"{split}-")]
        shards = [load_shard(folder, record, plan) for record in records]
        self.name = str(folder) if split == SPLITS[0] else f"{folder} held out"
        self.shape = plan.latent_shape
        self.in_memory = plan.megabytes() * 1e6 <= options.memory_bytes
        self.mirrors = plan.mirrored and options.flips is not False
        self.shift, self.scale = (_column(values) for values in (manifest.shift, manifest.scale))
        labelled = options.labels or options.captions
        self.classes = plan.classes if labelled else 0
        labels = torch.cat([shard.pop("labels") for shard in shards]) if plan.classes else None
        self._count = plan.train if split == SPLITS[0] else plan.held_out
        self.labels = checked_labels(self.name, labels, self._count, plan.classes) if labelled else None
        # In memory all shards are one; otherwise they stay memory-mapped.
        self._rows = self._count if self.in_memory else plan.shard
        self._shards = [_joined(shards)] if self.in_memory else shards

    def __len__(self) -> int:
        return self._count

    def examples(self, indices: Tensor, tick: Tick | None = None) -> Tensor:
        """[B, c, h, w] in float32; without a tick the posterior's mean, never mirrored."""
        latents = self._take("mean", indices)
        flipped = None
        if tick is not None and self.mirrors:
            flipped = (tick.uniform("flip", len(indices)) < 0.5).nonzero().flatten()
            latents.index_copy_(0, flipped, self._take("mirrored_mean", indices.index_select(0, flipped)))
        if tick is not None and "std" in self._shards[0]:
            spread = self._take("std", indices)
            if flipped is not None:
                spread.index_copy_(0, flipped, self._take("mirrored_std", indices.index_select(0, flipped)))
            noise = torch.randn(latents.shape, generator=tick.generator("posterior"))
            latents.addcmul_(spread, noise)
        return latents.sub_(self.shift).mul_(self.scale)

    def unscaled(self, x: Tensor) -> Tensor:
        """A network's output [B, c, h, w] as latents that the autoencoder decodes."""
        return x.to(torch.float32) / self.scale.to(x.device) + self.shift.to(x.device)

    def _take(self, key: str, indices: Tensor) -> Tensor:
        """Rows of one tensor across shards, copied to float32."""
        if len(self._shards) == 1:
            return self._shards[0][key].index_select(0, indices).to(torch.float32, copy=True)
        latents = torch.empty((len(indices), *self.shape))
        shard_numbers = indices // self._rows
        for number in shard_numbers.unique().tolist():
            places = (shard_numbers == number).nonzero().flatten()
            rows = indices.index_select(0, places) - number * self._rows
            latents.index_copy_(0, places, self._shards[number][key].index_select(0, rows).to(torch.float32))
        return latents


def read(folder: Path, options: Options) -> DataSet:
    """A finished, undamaged cache as data; raises BadData if it does not fit the options."""
    manifest = read_manifest(folder)
    plan = manifest.plan
    if not manifest.finished:
        raise BadData(
            f"{folder} is an unfinished folder of latents: finished shards are kept. Finish it with: "
            f"{plan.command(folder)}"
        )
    _check_options(folder, manifest, options)
    _verify(folder, manifest)
    train, held_out = (LatentSource(folder, manifest, split, options) for split in SPLITS)
    note = f"latents {'x'.join(map(str, plan.latent_shape))} of {plan.data} by {plan.autoencoder}"
    origin = LatentOrigin(plan.autoencoder, plan.fingerprint, plan.image_shape)
    captions = _captions(folder, plan) if options.captions else ()
    return DataSet(train, held_out, (*manifest.notes, note), origin, captions=captions)


def _captions(folder: Path, plan: CachePlan) -> tuple[str, ...]:
    """The captions that were stored with the latents, in the order of their numbers."""
    found = json_of(folder / CAPTIONS)
    texts = found if isinstance(found, list) and all(isinstance(text, str) for text in found) else []
    if captions_digest(texts) != plan.captions:
        raise BadData(f"{folder / CAPTIONS} was edited or is damaged: encode into another folder.")
    return tuple(texts)


def damaged(folder: Path, records: tuple[ShardRecord, ...]) -> list[str]:
    """The shards that do not match their record, and why."""
    reasons = [(record.name, shard_damage(folder, record)) for record in records]
    return [f"{name} {reason}" for name, reason in reasons if reason]


def _check_options(folder: Path, manifest: Manifest, options: Options) -> None:
    plan = manifest.plan
    channels, height, width = plan.image_shape
    again = "encode again into another folder"
    if options.size is not None and (options.size, options.size) != (height, width):
        raise BadData(
            f"{folder} has latents of {height}x{width} images: size={options.size} cannot change that. Leave "
            f"size out, or {again} with --size {options.size}."
        )
    if options.channels not in (None, channels):
        raise BadData(
            f"{folder} has latents of images with {channels} channels: channels={options.channels} cannot "
            "change that. Leave channels out."
        )
    if options.labels and (plan.captions or not plan.classes):
        raise BadData(f"{folder} has no labels: {again} with --labels, or train without them.")
    if options.captions and not plan.captions:
        raise BadData(f"{folder} has no captions: {again} with --captions, or train without them.")
    if options.flips and not plan.mirrored:
        raise BadData(f"{folder} has no mirrored latents: {again} with --flips, or leave flips out.")


def _verify(folder: Path, manifest: Manifest) -> None:
    """Check the shards' checksums; files with unchanged size and modification time are not read again."""
    stamps = {record.name: _stamp(folder / record.name) for record in manifest.records}
    try:
        known = object_of(folder / _VERIFIED)
    except Unreadable:
        known = {}
    fresh = tuple(r for r in manifest.records if known.get(r.name) != [r.sha256, *stamps[r.name]])
    reasons = damaged(folder, fresh)
    if reasons:
        raise BadData(
            f"{folder} is damaged: {'; '.join(reasons[:5])}{'; ...' if len(reasons) > 5 else ''}. This "
            f"repairs only the damaged shards: {manifest.plan.command(folder)}"
        )
    if fresh:
        body = {record.name: [record.sha256, *stamps[record.name]] for record in manifest.records}
        try:
            write_atomic(folder / _VERIFIED, json.dumps(body).encode())
        except OSError:
            return  # A read-only folder is verified each time.


def _stamp(path: Path) -> list[int]:
    try:
        stat = path.stat()
    except OSError:
        return []
    return [stat.st_size, stat.st_mtime_ns]


def _joined(shards: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([shard[key] for shard in shards]) for key in shards[0]}


def _column(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]

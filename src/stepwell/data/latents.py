"""Latents as training sees them: scaled, mirrored and drawn from their posterior by the tick."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from stepwell.core.tick import Tick
from stepwell.data import latent_cache as latent_manifest
from stepwell.data import latent_cache as latent_shards
from stepwell.data.latent_cache import SPLITS, Manifest, Record
from stepwell.data.source import BadData, DataSet, LatentOrigin, Options, checked_labels
from stepwell.runs.io import write_whole

_VERIFIED = ".verified.json"


class LatentSource:
    """Latents of one split: (z - shift) * scale, z the posterior's mean or, by the tick, a draw of it."""

    def __init__(self, folder: Path, manifest: Manifest, split: str, options: Options) -> None:
        plan = manifest.plan
        records = [r for r in manifest.records if r.name.startswith(f"{split}-")]
        shards = [latent_shards.load(folder, record) for record in records]
        self.name = str(folder) if split == SPLITS[0] else f"{folder} held out"
        self.shape = plan.latent_shape
        self.in_memory = plan.megabytes() * 1e6 <= options.memory_bytes
        self.mirrors = plan.mirrored and options.flips is not False
        self.shift, self.scale = (_column(values) for values in (manifest.shift, manifest.scale))
        self.classes = plan.classes if options.labels else 0
        labels = torch.cat([shard.pop("labels") for shard in shards]) if plan.classes else None
        self._count = plan.train if split == SPLITS[0] else plan.held_out
        self.labels = checked_labels(self.name, labels, self._count, plan.classes) if options.labels else None
        # In memory one shard holds all; else they stay mapped from their files.
        self._rows = self._count if self.in_memory else plan.shard
        self._shards = [_joined(shards)] if self.in_memory else shards

    def __len__(self) -> int:
        return self._count

    def examples(self, indices: Tensor, tick: Tick | None = None) -> Tensor:
        """[B, c, h, w] float32; without a tick the posterior's mean, never mirrored."""
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
        """What a network makes [B, c, h, w] as the latents that the autoencoder decodes."""
        return x.to(torch.float32) / self.scale.to(x.device) + self.shift.to(x.device)

    def _take(self, key: str, indices: Tensor) -> Tensor:
        """Rows of one tensor over all shards, as float32 copies."""
        if len(self._shards) == 1:
            return self._shards[0][key].index_select(0, indices).to(torch.float32, copy=True)
        found = torch.empty((len(indices), *self.shape))
        where = indices // self._rows
        for number in where.unique().tolist():
            here = (where == number).nonzero().flatten()
            rows = indices.index_select(0, here) - number * self._rows
            found.index_copy_(0, here, self._shards[number][key].index_select(0, rows).to(torch.float32))
        return found


def read(folder: Path, options: Options) -> DataSet:
    """A finished, undamaged cache as data; what is asked of images is checked against its own."""
    manifest = latent_manifest.read(folder)
    plan = manifest.plan
    if not manifest.finished:
        raise BadData(
            f"{folder} is an unfinished cache of latents: what is there is kept. Finish it with: "
            f"{plan.command(folder)}"
        )
    _agree(folder, manifest, options)
    _verify(folder, manifest)
    train, held_out = (LatentSource(folder, manifest, split, options) for split in SPLITS)
    note = f"latents {'x'.join(map(str, plan.latent_shape))} of {plan.data} by {plan.autoencoder}"
    origin = LatentOrigin(plan.autoencoder, plan.fingerprint, plan.image_shape)
    return DataSet(train, held_out, (*manifest.notes, note), origin)


def damaged(folder: Path, records: tuple[Record, ...]) -> list[str]:
    """Which shards are not what was written, and why."""
    found = [(record.name, latent_shards.wrong_with(folder, record)) for record in records]
    return [f"{name} {wrong}" for name, wrong in found if wrong]


def _agree(folder: Path, manifest: Manifest, options: Options) -> None:
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
    if options.labels and not plan.classes:
        raise BadData(f"{folder} has no labels: {again} with --labels, or train without them.")
    if options.flips and not plan.mirrored:
        raise BadData(f"{folder} has no mirrored latents: {again} with --flips, or leave flips out.")


def _verify(folder: Path, manifest: Manifest) -> None:
    """Checksums, once for each state of the files: size and time of change tell whether it is the same."""
    stamps = {record.name: _stamp(folder / record.name) for record in manifest.records}
    try:
        known = json.loads((folder / _VERIFIED).read_text())
    except (OSError, ValueError):
        known = {}
    fresh = tuple(r for r in manifest.records if known.get(r.name) != [r.sha256, *stamps[r.name]])
    wrong = damaged(folder, fresh)
    if wrong:
        raise BadData(
            f"{folder} is damaged: {'; '.join(wrong[:5])}{'; ...' if len(wrong) > 5 else ''}. This makes "
            f"only what is damaged again: {manifest.plan.command(folder)}"
        )
    if fresh:
        body = {record.name: [record.sha256, *stamps[record.name]] for record in manifest.records}
        try:
            write_whole(folder / _VERIFIED, json.dumps(body).encode())
        except OSError:
            return  # A folder that may not be written to is verified each time.


def _stamp(path: Path) -> list[int]:
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns]


def _joined(shards: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([shard[key] for shard in shards]) for key in shards[0]}


def _column(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]

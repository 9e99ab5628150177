"""`stepwell data`: encode images to latents, and look at what data there is."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.extra import require_extra

if TYPE_CHECKING:
    from stepwell.data.latent_manifest import Manifest, Plan

_EXAMPLES = """examples:
  stepwell data encode photos --size 256 --autoencoder hub:stabilityai/sd-vae-ft-ema --out latents
  stepwell data encode flowers.npz --autoencoder weights/taef2 --labels --out latents --dry-run
  torchrun --nproc_per_node 8 -m stepwell data encode photos --size 256 --autoencoder vae --out latents
  stepwell data show latents
  stepwell train images data=latents

Run the same encode again to go on where it stopped, or to make damaged shards again.
"""
_LINE_EVERY_SECONDS = 10


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser(
        "data",
        help="encode images to latents, or show what data hold",
        description="Encode images to latents once, for training on them; show what a cache or data hold.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = verb.add_subparsers(dest="what", metavar="WHAT", required=True)
    encode = what.add_parser("encode", help="images to a folder of latents", epilog=_EXAMPLES)
    encode.formatter_class = argparse.RawDescriptionHelpFormatter
    _reading(encode)
    encode.add_argument("--autoencoder", required=True, help="a folder, hub:ORG/NAME, or FOLDER/NAME")
    encode.add_argument("--out", type=Path, required=True, help="the folder of latents")
    encode.add_argument("--batch", type=int, default=32, help="images encoded at once")
    encode.add_argument("--shard", type=int, default=4096, help="images in a file")
    encode.add_argument("--dtype", default="fp16", choices=("fp16", "fp32"), help="of the stored latents")
    encode.add_argument(
        "--scale", default="channel", help="channel (mean 0, deviation 1), global, or a factor"
    )
    encode.add_argument("--dry-run", action="store_true", help="print what would be made")
    encode.set_defaults(run=_encode)
    show = what.add_parser("show", help="counts, shape, classes, scale, damage")
    _reading(show)
    show.set_defaults(run=_show)


def _reading(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("data", metavar="DATA", help="a folder, an .npz, CIFAR-10's folder, hub:NAME, latents")
    verb.add_argument("--size", type=int, default=None, help="resize and crop images to this")
    verb.add_argument("--labels", action="store_true", help="with class labels")
    verb.add_argument(
        "--flips",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="mirror images are data too; by default as data of this kind have it",
    )


def _encode(options: argparse.Namespace) -> None:
    require_extra()
    from stepwell.data.encode import encode
    from stepwell.data.latent_plan import Storage, plan_of
    from stepwell.data.load import load
    from stepwell.models.autoencoder import load_autoencoder
    from stepwell.recipes.latents import absolute, decoder_of, psnr, reconstruction

    storage = Storage(options.dtype, options.shard, options.scale)
    autoencoder = load_autoencoder(options.autoencoder)
    data = load(
        options.data,
        size=options.size,
        channels=autoencoder.image_channels,
        labels=options.labels,
        flips=options.flips,
    )
    plan = plan_of(absolute(options.data), data, autoencoder, storage)
    leads = _join_workers()
    if leads:
        _tell_plan(plan)
    if options.dry_run:
        return
    with _Bar(leads) as bar:
        made = encode(options.out, plan, data, autoencoder, batch=options.batch, progress=bar.update)
    if leads:
        cached = load(str(options.out))
        quality = psnr(*reconstruction(data, cached, decoder_of(cached, options.autoencoder)))
        _tell_scale(made)
        print(f"held-out images come back with {quality:.1f} dB")
        print(f"Next: stepwell train images data={options.out}{' labels=true' if plan.classes else ''}")


def _join_workers() -> bool:
    """Whether this process speaks for all; under torchrun they meet here."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    from datetime import timedelta

    from torch import cuda, distributed

    if cuda.is_available():
        cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not distributed.is_initialized():
        # Ranks may finish hours apart; they meet only at the end.
        distributed.init_process_group("gloo", timeout=timedelta(days=7))
    return distributed.get_rank() == 0


def _tell_plan(plan: Plan) -> None:
    latent, image = ("x".join(map(str, shape)) for shape in (plan.latent_shape, plan.image_shape))
    more = [f"{plan.classes} classes"] if plan.classes else ["no labels"]
    more += ["mirrored too"] if plan.mirrored else []
    more += ["mean and deviation"] if plan.posterior else []
    print(f"{plan.train:,} images to train on and {plan.held_out:,} held out, {', '.join(more)}")
    print(f"{image} pixels to {latent} latents by {plan.autoencoder} ({plan.fingerprint[:12]})")
    print(f"{len(list(plan.shards()))} shards in {plan.dtype}, {plan.megabytes():,.1f} MB")


def _tell_scale(made: Manifest) -> None:
    low, high = min(made.std), max(made.std)
    means = f"means from {min(made.mean):.3f} to {max(made.mean):.3f}"
    print(f"channels: {means}, deviations from {low:.3f} to {high:.3f}; scaled by {made.plan.scale!r}")


def _show(options: argparse.Namespace) -> None:
    require_extra()
    from stepwell.core.errors import StepwellError
    from stepwell.data import latent_manifest
    from stepwell.data.latents import damaged
    from stepwell.data.load import load

    folder = Path(options.data).expanduser()
    if latent_manifest.is_cache(folder):
        found = latent_manifest.read(folder)
        _tell_plan(found.plan)
        if not found.finished:
            raise StepwellError(f"{folder} is unfinished. Finish it with: {found.plan.command(folder)}")
        _tell_scale(found)
        wrong = damaged(folder, found.records)
        if wrong:
            repair = found.plan.command(folder)
            raise StepwellError(f"{folder} is damaged: {'; '.join(wrong)}. Repair it with: {repair}")
        print("all shards match their checksums")
        return
    data = load(options.data, size=options.size, labels=options.labels, flips=options.flips)
    shape = "x".join(map(str, data.train.shape))
    classes = f", {data.train.classes} classes" if data.train.classes else ""
    print(f"{len(data.train):,} images to train on and {len(data.held_out):,} held out, {shape}{classes}")
    for note in data.notes:
        print(note)


class _Bar:
    """How many images are encoded: a bar in a terminal, now and then a line elsewhere."""

    def __init__(self, leads: bool) -> None:
        self._leads = leads
        self._bar: Any = None
        self._last_line = time.monotonic()

    def __enter__(self) -> _Bar:
        if self._leads and sys.stderr.isatty():
            from rich.progress import Progress

            self._bar = Progress(transient=True)
            self._task = self._bar.add_task("encoding", total=None)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int) -> None:
        """How far this process is."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif self._leads and time.monotonic() - self._last_line > _LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            print(f"encoded {done:,} of {total:,}", flush=True)

"""`stepwell data`: encode images to latents, or describe data."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from stepwell.cli.columns import folded
from stepwell.cli.options import add_command, begin, path_of, whole
from stepwell.cli.progress import Bar
from stepwell.core.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.data.latent_cache import CachePlan, Manifest

_EXAMPLES = """examples:
  stepwell data encode photos --size 256 --autoencoder hub:stabilityai/sd-vae-ft-ema --out latents
  stepwell data encode flowers.npz --autoencoder weights/taef2 --labels --out latents --dry-run
  torchrun --nproc_per_node 8 -m stepwell data encode photos --size 256 --autoencoder vae --out latents
  stepwell data show latents
  stepwell train images data=latents

Run the same encode again to continue an interrupted one, or to repair damaged shards.
"""


def register(verbs: Any) -> None:
    """Add the verb to the command line."""
    description = "Encode images once to train on their latents, or describe images or latents."
    verb = verbs.add_parser(
        "data",
        help="encode images to latents, or describe data",
        description=description,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = verb.add_subparsers(dest="what", metavar="WHAT", required=True)
    encode = add_command(
        what,
        "encode",
        _encode,
        help="encode images to a folder of latents",
        description="Encode images to a folder of latents.",
        examples=_EXAMPLES,
    )
    _add_reading(encode)
    encode.add_argument("--autoencoder", required=True, help="a folder, hub:ORG/NAME, or FOLDER/NAME")
    encode.add_argument("--out", type=path_of, required=True, help="the folder to write")
    encode.add_argument("--batch", type=whole(65_536), default=32, help="images encoded at once (32)")
    encode.add_argument("--shard", type=whole(1_000_000), default=4096, help="images per file (4096)")
    encode.add_argument(
        "--dtype", default="fp16", choices=("fp16", "fp32"), help="precision of the stored latents (fp16)"
    )
    encode.add_argument(
        "--scale", default="channel", help="channel (mean 0, deviation 1 each), global, or a factor"
    )
    encode.add_argument("--dry-run", action="store_true", help="print what would be written")
    show = add_command(
        what,
        "show",
        _show,
        help="describe images or latents",
        description="Print counts, shape and classes of data; of latents also their scale and damage.",
    )
    _add_reading(show)


def _add_reading(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("data", metavar="DATA", help="a folder, an .npz, CIFAR-10's folder, hub:NAME, latents")
    verb.add_argument("--size", type=whole(16_384), default=None, help="resize and crop images to this size")
    verb.add_argument("--labels", action="store_true", help="read class labels")
    verb.add_argument(
        "--captions", action="store_true", help="read captions: a .txt beside each image, or metadata.jsonl"
    )
    verb.add_argument(
        "--flips",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="random horizontal flips (default: depends on the kind of data)",
    )


def _encode(options: argparse.Namespace) -> None:
    begin(f"encoding {options.data}")
    from stepwell.core.ranks import ranks
    from stepwell.data.encode import Storage, encode, plan_of
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
        captions=options.captions,
    )
    plan = plan_of(absolute(options.data), data, autoencoder, storage)
    with ranks() as group:
        leads = group.rank == 0
        if leads:
            _print_plan(plan)
        if options.dry_run:
            return
        with Bar(silent=not leads) as bar:
            update = partial(bar.update, "encoding")
            try:
                manifest = encode(options.out, plan, data, autoencoder, batch=options.batch, progress=update)
            except OSError as error:
                raise StepwellError(
                    f"cannot write {options.out}: {error.strerror or error}. The same command continues."
                ) from error
        if leads:
            cached = load(str(options.out))
            quality = psnr(*reconstruction(data, cached, decoder_of(cached, options.autoencoder)))
            _print_scale(manifest)
            print(f"PSNR of decoded held-out images: {quality:.1f} dB")
            more = " labels=true" if plan.classes else ""
            if plan.captions:
                more = " captions=true text_encoder=FOLDER model=text-small"
            print(f"Next: stepwell train images data={options.out}{more}")


def _print_plan(plan: CachePlan) -> None:
    latent, image = ("x".join(map(str, shape)) for shape in (plan.latent_shape, plan.image_shape))
    kind = "different captions" if plan.captions else "classes"
    more = [f"{plan.classes} {kind}"] if plan.classes else ["no labels"]
    more += ["mirrored too"] if plan.mirrored else []
    more += ["mean and deviation"] if plan.posterior else []
    print(f"{plan.train:,} images to train on and {plan.held_out:,} held out, {', '.join(more)}")
    print(f"{image} pixels to {latent} latents by {plan.autoencoder} ({plan.fingerprint[:12]})")
    print(f"{len(list(plan.shards()))} shards in {plan.dtype}, {plan.megabytes():,.1f} MB")


def _print_scale(manifest: Manifest) -> None:
    mean, std, scale = manifest.mean, manifest.std, manifest.plan.scale
    means, deviations = (f"from {min(values):.3f} to {max(values):.3f}" for values in (mean, std))
    print(f"channels: means {means}, deviations {deviations}; scale {scale!r}")


def _show(options: argparse.Namespace) -> None:
    begin(f"reading {options.data}")
    from stepwell.core.reading import place
    from stepwell.data.latent_cache import is_latent_cache, read_manifest
    from stepwell.data.latents import damaged
    from stepwell.data.load import load

    folder = place(options.data)
    if is_latent_cache(folder):
        manifest = read_manifest(folder)
        _print_plan(manifest.plan)
        command = manifest.plan.command(folder)
        if not manifest.finished:
            raise StepwellError(f"{folder} is unfinished. Finish it with: {command}")
        _print_scale(manifest)
        reasons = damaged(folder, manifest.records)
        if reasons:
            raise StepwellError(f"{folder} is damaged: {'; '.join(reasons)}. Repair it with: {command}")
        print("all shards match their checksums")
        return
    data = load(
        options.data,
        size=options.size,
        labels=options.labels,
        flips=options.flips,
        captions=options.captions,
    )
    shape = "x".join(map(str, data.train.shape))
    classes = f", {data.train.classes} classes" if options.labels else ""
    counts = f"{len(data.train):,} images to train on and {len(data.held_out):,} held out"
    print(folded(f"{counts}, {shape}{classes}"))
    for note in data.notes:
        print(folded(note))

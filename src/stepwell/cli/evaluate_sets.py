"""`stepwell evaluate IMAGES REFERENCE`: distances between two sets of images, in one process or several."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.cli.columns import folded
from stepwell.cli.options import path_of, whole
from stepwell.cli.progress import Bar
from stepwell.runs.metrics import FRECHET, KERNEL

if TYPE_CHECKING:
    from stepwell.evaluate.compare_sets import Comparison

_OPTIONS = ("extractor", "weights", "resize", "size", "batch")


def add_options(group: Any) -> None:
    """The options that only two sets have."""
    group.add_argument("--extractor", help="inception (default), resnet20-cifar10 or fashion16")
    group.add_argument(
        "--weights", type=path_of, metavar="FILE", help="of the extractor: .pth or .safetensors"
    )
    group.add_argument(
        "--resize",
        help="clean (default; clean-fid's antialiased bicubic), legacy (pytorch-fid's bilinear) or legacy-tf "
        "(the original's, torch-fidelity's and guided-diffusion's)",
    )
    group.add_argument(
        "--size", type=whole(16_384), metavar="N", help="crop and resize images to N x N first"
    )
    group.add_argument("--batch", type=whole(65_536), metavar="N", help="images at once (32)")


def options_of_sets(options: argparse.Namespace) -> list[str]:
    """The options on the command line that only two sets have."""
    return [f"--{name}" for name in _OPTIONS if getattr(options, name) is not None]


def looks_like_images(path: Path) -> bool:
    """Whether a path is a folder or an .npz."""
    return path.is_dir() or (path.is_file() and path.suffix.lower() == ".npz")


def run(options: argparse.Namespace) -> None:
    """Extract on all ranks, compare and print on the first."""
    from stepwell.core import require
    from stepwell.core.ranks import own_device, ranks
    from stepwell.data.load import kind_of, not_found
    from stepwell.evaluate.compare_sets import Reading, compare, side
    from stepwell.evaluate.extractors import extractor

    count, size = (
        None if value is None else require.count(name, value)
        for name, value in (("-n", options.generated), ("--size", options.size))
    )
    reading = Reading(count, size, require.count("--batch", 32 if options.batch is None else options.batch))
    for spec in (str(options.directory), options.reference):
        if kind_of(spec) is None:
            raise not_found(spec)
    with ranks() as group:
        network = extractor(
            options.extractor or "inception", options.weights, resize=options.resize or "clean"
        ).on(own_device())
        with Bar(silent=group.rank > 0) as bar:

            def progress(name: str, done: int, total: int) -> None:
                bar.update(f"features of {name}", done, total)

            images = side(options.directory, network, reading, progress)
            reference = side(options.reference, network, reading, progress)
        if group.rank > 0:
            return
        result = compare(images, reference, network)
    print(json.dumps(_plain(result)) if options.json else folded(_text(result, network.name, options)))


def _plain(result: Comparison) -> dict[str, Any]:
    kernel, shares = result.kernel, result.shares
    return {
        "measure": result.title,
        "fid": result.frechet if result.title == "FID" else None,
        "frechet_distance": result.frechet,
        "kernel_distance": None if kernel is None else kernel.mean,
        "kernel_distance_standard_error": None if kernel is None else kernel.standard_error,
        "precision": None if shares is None else shares.precision,
        "recall": None if shares is None else shares.recall,
        "images": result.counts[0],
        "reference_images": result.counts[1],
        "extractor": result.identity,
        "notes": list(result.notes),
    }


def _text(result: Comparison, features: str, options: argparse.Namespace) -> str:
    counts = ["an unknown number of" if count is None else f"{count:,}" for count in result.counts]
    lines = [
        f"{options.directory} ({counts[0]} images) and {options.reference} ({counts[1]} images)",
        f"  {FRECHET.name(features)}: {result.frechet:{FRECHET.format}}",
    ]
    if result.kernel is not None:
        mean, error = (f"{value:{KERNEL.format}}" for value in result.kernel)
        lines.append(f"  {KERNEL.name(features)}: {mean} ± {error}")
    if result.shares is not None:
        lines.append(f"  precision: {result.shares.precision:.4f}   recall: {result.shares.recall:.4f}")
    lines.append(f"  extractor: {result.identity}")
    return "\n".join([*lines, *(f"  Note: {note}" for note in result.notes)])
